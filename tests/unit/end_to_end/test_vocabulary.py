"""A vocabulary spread over all meshes: the loss and the gradients of the whole one."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unit.activations import peak_activations
from unit.end_to_end import decoder
from unit.end_to_end.compare import check, feed_state, make_mesh
from unit.end_to_end.transformer import cross_entropy

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.models import scan_slices, vocabulary_cross_entropy, vocabulary_embedding
from jaxpp.runtime import load
from jaxpp.schedules.engine.activations import activations

WIDTH, LENGTH, MICROBATCHES = 8, 5, 4


def sharded_loss(params: Any, tokens: Any, shards: int, embeds: bool) -> jax.Array:
    """Of layers, one a stage, and a table that is the head, and the input's embedding too if `embeds`."""
    inputs = tokens[:, :-1]
    x = vocabulary_embedding(inputs, params["table"], shards=shards) if embeds else params["inputs"][inputs]
    for number, weight in enumerate(params["layers"]):
        x = x + jnp.tanh(x @ weight)
        x = jaxpp.mark_stage_end(x) if number < len(params["layers"]) - 1 else x
    losses = vocabulary_cross_entropy(x, params["table"], tokens[:, 1:], shards=shards)
    return jaxpp.mark_stage_end(losses.mean())


def whole_loss(params: Any, tokens: Any, embeds: bool) -> jax.Array:
    x = params["table" if embeds else "inputs"][tokens[:, :-1]]
    for weight in params["layers"]:
        x = x + jnp.tanh(x @ weight)
    return cross_entropy(x @ params["table"].T, tokens[:, 1:])


def train_step(params: Any, batch: Any, loss: Any, schedule: Any) -> Any:
    gradient = partial(jax.value_and_grad(loss), params)
    losses, grads = jaxpp.treduce(gradient, batch, schedule=schedule, operation=(jaxpp.Concat(), jaxpp.Add))
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), losses  # pyright: ignore[reportUnknownLambdaType]


def arguments(vocabulary: int, layers: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return (0.5 * rng.standard_normal(shape)).astype(np.float32)

    params = {"table": normal(vocabulary, WIDTH), "layers": [normal(WIDTH, WIDTH) for _ in range(layers)]}
    params["inputs"] = normal(vocabulary, WIDTH)
    return params, rng.integers(0, vocabulary, (MICROBATCHES, 3, LENGTH + 1)).astype(np.int32)


@pytest.mark.parametrize("embeds", [False, True])
@pytest.mark.parametrize("vocabulary", [12, 13])
def test_the_numbers_of_the_whole_vocabulary(vocabulary: int, embeds: bool) -> None:
    schedule = schedules.make("vocab-1f1b", meshes=3, microbatches=MICROBATCHES, embedding=embeds)
    given = arguments(vocabulary, 3)
    step = partial(train_step, loss=partial(sharded_loss, shards=3, embeds=embeds), schedule=schedule)
    whole = jax.jit(partial(train_step, loss=partial(whole_loss, embeds=embeds), schedule="gpipe"))
    found, losses = check(step, given, make_mesh(3), steps=2, feed=feed_state, reference=whole)
    # The rows of a shard are on its mesh alone, where all have as many.
    assert found["table"].sharding.is_fully_replicated == (vocabulary == 13)
    _, expected = whole(whole(*given)[0], given[1])
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


def test_shards_that_cuts_put_together() -> None:
    """Four shards of the model, of which the cuts make the two of the schedule."""
    schedule = schedules.make("vocab-1f1b", meshes=2, microbatches=MICROBATCHES)
    step = partial(train_step, loss=partial(sharded_loss, shards=4, embeds=False), schedule=schedule)
    whole = jax.jit(partial(train_step, loss=partial(whole_loss, embeds=False), schedule="gpipe"))
    check(step, arguments(12, 2), make_mesh(2), reference=whole, cuts=[1, 1, 2, 2, 1])


def test_a_table_that_is_stored_transposed() -> None:
    """Its rows are no rows of the table: each mesh has all of it."""

    def loss(params: Any, tokens: Any) -> jax.Array:
        return sharded_loss(params | {"table": params["table"].T}, tokens, shards=2, embeds=False)

    params, tokens = arguments(12, 2)
    schedule = schedules.make("vocab-1f1b", meshes=2, microbatches=MICROBATCHES)
    step = partial(train_step, loss=loss, schedule=schedule)
    check(step, (params | {"table": params["table"].T.copy()}, tokens), make_mesh(2))


@pytest.mark.parametrize("change", [schedules.recompute, schedules.offload])
def test_peaks_of_stages_that_are_made_again_or_moved(change: Any) -> None:
    """The last stage has no weights: behind its backward nothing is kept. Two reloads are under way at once."""
    schedule = change(schedules.make("vocab-v-half", meshes=2, microbatches=MICROBATCHES))
    step = partial(train_step, loss=partial(sharded_loss, shards=2, embeds=False), schedule=schedule)
    found = peak_activations(
        load(jaxpp.mpmd_jit_with_loop(step, make_mesh(2)).lower(*arguments(12, 4)).program().module)
    )
    simulated = schedules.simulate(schedule).peak_activations()
    assert found == activations(schedule)
    assert found == pytest.approx([each * schedule.stages / schedule.meshes for each in simulated])


def test_two_stages_of_layers_on_each_mesh() -> None:
    schedule = schedules.make("vocab-v-half", meshes=2, microbatches=MICROBATCHES)
    step = partial(train_step, loss=partial(sharded_loss, shards=2, embeds=False), schedule=schedule)
    check(step, arguments(12, 4), make_mesh(2), steps=2, feed=feed_state)


def test_peaks_and_logits() -> None:
    """Peaks are those of the schedule, and nowhere is a matrix of all logits."""
    schedule = schedules.make("vocab-1f1b", meshes=3, microbatches=8)
    params, _ = arguments(600, 3)
    batch = np.zeros((8, 3, LENGTH + 1), np.int32)
    step = partial(train_step, loss=partial(sharded_loss, shards=3, embeds=False), schedule=schedule)
    program = jaxpp.mpmd_jit_with_loop(step, make_mesh(3)).lower(params, batch).program()
    text = program.as_text()
    assert f"tensor<3x{LENGTH}x200xf32>" in text
    assert f"tensor<3x{LENGTH}x600xf32>" not in text
    assert peak_activations(load(program.module)) == activations(schedule)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            {"embedding": np.zeros((2, 4))},
            ValueError,
            r"expected an embedding \[vocabulary, width\] with a row or more for each of 3 shards, found \[2, 4\]: "
            "take fewer shards, and a schedule of as many meshes",
        ),
        ({"shards": 0}, ValueError, "shards must be at least 1, found 0"),
        ({"targets": np.zeros((2, 3), np.float32)}, TypeError, "targets are integers, found float32"),
        ({"shards": 2.0}, TypeError, r"shards must be a whole number, found 2\.0"),
        ({"embedding": [[0.0] * 4]}, TypeError, "embedding is of type list, not an array"),
        ({"hidden": [0.0]}, TypeError, "hidden is floating-point, found list"),
        ({"hidden": np.zeros((2, 3, 4), int)}, TypeError, "hidden is floating-point, found int64"),
        (
            {"hidden": np.zeros((2, 4))},
            ValueError,
            r"expected hidden of \[2, 3, 4\], by targets and embedding, found \[2, 4\]",
        ),
    ],
)
def test_arguments_that_do_not_fit(change: dict[str, Any], error: type[Exception], text: str) -> None:
    given: dict[str, Any] = {
        "hidden": np.zeros((2, 3, 4)),
        "embedding": np.zeros((6, 4)),
        "targets": np.zeros((2, 3), np.int32),
    }
    with pytest.raises(error, match=rf"test_vocabulary\.py:\d+: vocabulary_cross_entropy: {text}$"):
        vocabulary_cross_entropy(**{"shards": 3} | given | change)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint32])
def test_tokens_of_any_width(dtype: Any) -> None:
    """More rows than 8 bits count; and some that there are not."""
    rng = np.random.default_rng(1)
    table, hidden = (rng.standard_normal(shape).astype(np.float32) for shape in ((320, 4), (5, 4)))
    tokens = np.array([0, 3, 64, 100, 127], dtype)
    np.testing.assert_array_equal(vocabulary_embedding(tokens, table, shards=4), table[tokens])
    found = np.asarray(jax.nn.log_softmax(hidden @ table.T))
    losses = vocabulary_cross_entropy(hidden, table, tokens, shards=4)
    np.testing.assert_allclose(losses, -found[np.arange(5), tokens], rtol=1e-5)
    none = np.array([-1, -1, 320, 321, 2], np.int32)
    assert (np.asarray(vocabulary_embedding(none, table, shards=3))[:4] == 0).all()
    losses = vocabulary_cross_entropy(hidden, table, none, shards=3)
    np.testing.assert_allclose(losses[:4], jax.nn.logsumexp(hidden @ table.T, axis=-1)[:4], rtol=1e-5)


def test_targets_that_are_computed_and_a_half_wide_table() -> None:
    """What all shards use of the batch is computed where the last layer is."""
    schedule = schedules.make("vocab-1f1b", meshes=2, microbatches=MICROBATCHES)

    def loss(params: Any, tokens: Any) -> jax.Array:
        x = params["inputs"][tokens[:, :-1]].astype(jnp.bfloat16)
        x = jaxpp.mark_stage_end(jnp.tanh(x @ params["layers"][0].astype(x.dtype)))
        x = jnp.tanh(x @ params["layers"][1].astype(x.dtype))
        targets = jnp.where(jnp.cumsum(tokens[:, 1:] == 0, -1) > 0, -1, tokens[:, 1:])
        losses = vocabulary_cross_entropy(x, params["table"].astype(x.dtype), targets, shards=2)
        return jaxpp.mark_stage_end(jnp.where(targets < 0, 0, losses).mean())

    check(partial(train_step, loss=loss, schedule=schedule), arguments(12, 2), make_mesh(2), tolerance=1e-2)


def test_layers_that_are_marked_twice() -> None:
    """The function ends the last ones itself."""

    def loss(params: Any, tokens: Any) -> jax.Array:
        x = jaxpp.mark_stage_end(jnp.tanh(params["inputs"][tokens[:, :-1]]))
        losses = vocabulary_cross_entropy(x, params["table"], tokens[:, 1:], shards=1)
        return jaxpp.mark_stage_end(losses.mean())

    found = refused(loss, 1, 0)
    assert found == (
        "found 4 stage marks, the schedule vocab-1f1b has 3 stages\n  vocabulary_cross_entropy ends the last stage of "
        "layers and its 1 shard by itself: mark the end of the other stages of layers, and the loss"
    )


@pytest.mark.parametrize("embeds", [False, True])
def test_a_model_of_another_number_of_shards(embeds: bool) -> None:
    found = refused(partial(sharded_loss, shards=2, embeds=embeds), 3, 3)
    assert found == (
        f"found {8 if embeds else 6} stage marks, the schedule vocab-1f1b has 7 stages\n"
        "  vocabulary_cross_entropy has 2 shards, vocab-1f1b one on each of its 3 meshes: shards=3, or a schedule of 2 "
        "meshes"
    )


def test_a_lookup_in_shards_that_the_schedule_does_not_have() -> None:
    found = refused(partial(sharded_loss, shards=2, embeds=True), 2, 2)
    assert found.endswith("and the loss; vocabulary_embedding ends 2, for vocab-1f1b{embedding=true}"), found


@pytest.mark.parametrize(("name", "layers"), [("vocab-1f1b", 2), ("vocab-v-half", 4)])
def test_a_lookup_in_shards_that_the_model_does_not_have(name: str, layers: int) -> None:
    found = refused(partial(sharded_loss, shards=2, embeds=False), 2, layers, f"{name}{{embedding=true}}")
    lookup = "jaxpp.models.vocabulary_embedding: call it, or leave embedding out"
    assert found.endswith(f"the loss; {name}{{embedding=true}} has 2 for {lookup}"), found


def test_a_model_without_shards_and_a_schedule_of_them() -> None:
    assert refused(marked_loss, 2, 2).endswith(
        "\n  vocab-1f1b is for losses of jaxpp.models.vocabulary_cross_entropy(..., shards=2), which ends 3 stages "
        "by itself: call it, or take another schedule"
    )


def test_a_schedule_without_shards_and_a_model_of_them() -> None:
    assert refused(partial(sharded_loss, shards=2, embeds=False), 2, 2, "1f1b") == (
        "found 5 stage marks, the schedule 1f1b has 2 stages\n"
        "  vocabulary_cross_entropy ends 3 stages: take vocab-1f1b or vocab-v-half, on 2 meshes"
    )


def sliced_loss(
    params: Any, text: Any, shards: int, embeds: bool, slices: int = 1, cuts: tuple[int, ...] | None = None
) -> jax.Array:
    """Of a decoder that scans over slices of the sequence, each of them with a spread vocabulary."""

    def of_slice(caches: Any, text: Any, start: jax.Array) -> Any:
        inputs, targets = text
        x = vocabulary_embedding(inputs, params["table"], shards=shards) if embeds else params["inputs"][inputs]
        new: list[Any] = []
        for number, (weights, cache) in enumerate(zip(params["layers"], caches, strict=True)):
            x, cache = decoder.block(weights, x, cache, start)
            x = jaxpp.mark_stage_end(x) if number < len(caches) - 1 else x
            new.append(cache)
        losses = vocabulary_cross_entropy(x / 4, params["table"], targets, shards=shards)
        return new, jaxpp.mark_stage_end(losses.sum())

    caches = [(jnp.zeros((len(text), decoder.LENGTH, decoder.WIDTH)),) * 2 for _ in params["layers"]]
    length: Any = {"cuts": cuts} if cuts else {"slices": slices}
    return scan_slices(of_slice, caches, (text[:, :-1], text[:, 1:]), **length)[1].sum() / text[:, 1:].size


def slices_of_text(rows: int, layers: int, microbatches: int = MICROBATCHES, sequences: int = 3) -> tuple[Any, Any]:
    params, _ = arguments(rows, 0)
    tokens = np.random.default_rng(0).integers(0, rows, (microbatches, sequences, decoder.LENGTH + 1))
    return params | {"layers": decoder.parameters(layers)["blocks"]}, tokens.astype(np.int32)


@pytest.mark.parametrize(
    ("name", "meshes", "embeds", "rows", "slices", "cuts"),
    [
        ("vocab-1f1b", 2, False, 12, 2, None),
        ("vocab-1f1b", 3, True, 12, 4, None),
        ("vocab-1f1b", 2, False, 13, 2, (8, 4)),
        ("vocab-v-half", 2, True, 12, 3, None),
    ],
)
def test_slices_of_a_vocabulary_on_all_meshes(
    name: str, meshes: int, embeds: bool, rows: int, slices: int, cuts: tuple[int, ...] | None
) -> None:
    """The numbers of whole sequences and a whole vocabulary; and of the same step under plain jax.jit."""
    schedule = schedules.make(name, meshes=meshes, microbatches=MICROBATCHES, embedding=embeds, slices=slices)
    given = slices_of_text(rows, meshes * (1 + (name == "vocab-v-half")))
    loss = partial(sliced_loss, shards=meshes, embeds=embeds)
    step = partial(train_step, loss=partial(loss, slices=slices, cuts=cuts), schedule=schedule)
    found, losses = check(step, given, make_mesh(meshes), steps=2, feed=feed_state)
    assert found["table"].sharding.is_fully_replicated == (rows % meshes > 0)
    whole = jax.jit(partial(train_step, loss=partial(loss, slices=1), schedule="gpipe"))
    np.testing.assert_allclose(losses, whole(whole(*given)[0], given[1])[1], rtol=1e-5)


@pytest.mark.parametrize("change", [schedules.recompute, schedules.offload, None])
@pytest.mark.parametrize("name", ["vocab-1f1b", "vocab-v-half"])
def test_peaks_of_slices(name: str, change: Any) -> None:
    schedule = schedules.make(name, meshes=2, microbatches=MICROBATCHES, slices=3)
    schedule = change(schedule) if change else schedule
    loss = partial(sliced_loss, shards=2, embeds=False, slices=3)
    given = slices_of_text(12, 2 * (1 + (name == "vocab-v-half")))
    step = partial(train_step, loss=loss, schedule=schedule)
    program = jaxpp.mpmd_jit_with_loop(step, make_mesh(2)).lower(*given).program()
    assert peak_activations(load(program.module)) == activations(schedule)
    check(step, given, make_mesh(2))


def test_slices_that_the_schedule_of_a_vocabulary_does_not_have() -> None:
    loss = partial(sliced_loss, shards=2, embeds=False, slices=4)
    for name, text in (
        (
            "vocab-1f1b",
            "found 20 stage marks, one for each layer of a scan; the schedule vocab-1f1b has 5 stages\n"
            "  vocabulary_cross_entropy spreads a vocabulary over stages, which a scan over layers can't hold: call it "
            "behind the scan; or, if that is over slices of the sequence, take a schedule of as many, such as "
            "vocab-1f1b{slices=4}",
        ),
        (
            "vocab-1f1b{slices=3}",
            "the schedule vocab-1f1b has 3 slices, the loop over slices runs 4 times\n"
            "  cut the sequence into 3 slices, or take a schedule of as many as the loop has",
        ),
        (
            "seq1f1b{slices=4}",
            "slice 0 has 5 stage marks in its forward, the schedule seq1f1b has 2 stages\n"
            "  vocabulary_cross_entropy ends 3 stages: take vocab-1f1b or vocab-v-half, on 2 meshes",
        ),
    ):
        step = jaxpp.mpmd_jit_with_loop(partial(train_step, loss=loss, schedule=name), make_mesh(2))
        with pytest.raises(jaxpp.PassError) as caught:
            step(*slices_of_text(12, 2))
        assert str(caught.value).split(": error: ")[1] == text


def marked_loss(params: Any, tokens: Any) -> jax.Array:
    """`whole_loss`, with a mark behind each layer."""
    x = params["inputs"][tokens[:, :-1]]
    for weight in params["layers"]:
        x = jaxpp.mark_stage_end(x + jnp.tanh(x @ weight))
    return cross_entropy(x @ params["table"].T, tokens[:, 1:])


def refused(loss: Any, meshes: int, layers: int, name: str = "vocab-1f1b") -> str:
    """What is said of the loss under this schedule, without the place."""
    schedule = schedules.resolve(name, meshes=meshes, microbatches=MICROBATCHES)
    with pytest.raises(jaxpp.PassError) as caught:
        jaxpp.mpmd_jit_with_loop(partial(train_step, loss=loss, schedule=schedule), make_mesh(meshes))(
            *arguments(12, layers)
        )
    return str(caught.value).split(": error: ")[1]
