"""A vocabulary spread over all meshes: the loss and the gradients of the whole one."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unit.end_to_end.compare import assert_same, check, feed_state, make_mesh

import jaxpp.api as jaxpp
from jaxpp import schedules, vocabulary_cross_entropy, vocabulary_embedding
from jaxpp.schedules.memory import activations

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
    found = jax.nn.log_softmax(x @ params["table"].T)
    return -jnp.take_along_axis(found, tokens[:, 1:, None], axis=-1).mean()


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
    found, losses = check(step, given, make_mesh(3), steps=2, feed=feed_state)
    # The rows of a shard are on its mesh alone, where all have as many.
    assert found["table"].sharding.is_fully_replicated == (vocabulary == 13)
    whole = jax.jit(partial(train_step, loss=partial(whole_loss, embeds=embeds), schedule="gpipe"))
    state, batch = given
    expected: Any = None
    for _ in range(2):
        state, expected = whole(state, batch)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert_same(found, state)


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
    assert [int(peak) for peak in re.findall(r"jaxpp\.peak_activations = (\d+)", text)] == activations(schedule)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            {"embedding": np.zeros((2, 4))},
            ValueError,
            r"expected an embedding \[vocabulary, width\] with a row or more for each of 3 shards, found \[2, 4\]",
        ),
        ({"targets": np.zeros((2, 3), np.float32)}, TypeError, "tokens are integers, found float32"),
        (
            {"hidden": np.zeros((2, 4))},
            ValueError,
            r"expected hidden of \[2, 3, 4\], by targets and embedding, found \[2, 4\]",
        ),
    ],
)
def test_arguments_that_do_not_fit(change: dict[str, Any], error: type[Exception], text: str) -> None:
    given = {"hidden": np.zeros((2, 3, 4)), "embedding": np.zeros((6, 4)), "targets": np.zeros((2, 3), np.int32)}
    with pytest.raises(error, match=rf"test_vocabulary\.py:\d+: vocabulary_cross_entropy: {text}$"):
        vocabulary_cross_entropy(**given | change, shards=3)


def test_a_model_of_another_number_of_shards() -> None:
    schedule = schedules.make("vocab-1f1b", meshes=3, microbatches=MICROBATCHES)
    step = partial(train_step, loss=partial(sharded_loss, shards=2, embeds=False), schedule=schedule)
    with pytest.raises(jaxpp.PassError, match="stage 5 reads what stage 3 makes, but the schedule does not say so"):
        jaxpp.mpmd_jit_with_loop(step, make_mesh(3))(*arguments(12, 3))
