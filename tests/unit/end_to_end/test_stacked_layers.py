"""A scan over all layers with a mark in its body: the parameters of the stages are rows of stacked arrays."""

# pyright: reportUnknownLambdaType=false

import re
from collections import Counter
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, feed_state, lowered, make_mesh, weights
from unit.end_to_end.everywhere import PLANS, check_loss, check_step, gradient_step, in_turn, more_plans, plans

import jaxpp.api as jaxpp

mark = jaxpp.mark_stage_end


def stacked(count: int = 4) -> dict[str, jax.Array]:
    return jax.tree.map(jnp.array, _stacked(count))


@cache
def _stacked(count: int) -> dict[str, np.ndarray]:
    biases = 0.1 * jax.random.normal(jax.random.key(9), (count, 8))
    return {"w": np.stack(weights(count)), "b": np.asarray(biases)}


def layer(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["w"] + params["b"])


def squared_error(x: jax.Array, microbatch: Any) -> jax.Array:
    return jnp.mean((x - microbatch["y"]) ** 2)


def loss(params: Any, microbatch: Any, **options: Any) -> jax.Array:
    x, _ = lax.scan(lambda x, params: (mark(layer(params, x)), None), microbatch["x"], params, **options)
    return squared_error(x, microbatch)


@more_plans
def test_scan_over_all_layers(plan: str) -> None:
    check_loss(loss, plan, stacked(), steps=2)


@pytest.mark.parametrize("options", [{"reverse": True}, {"unroll": 2}, {"unroll": True}, {"_split_transpose": True}])
def test_options_of_scan(options: dict[str, Any]) -> None:
    check_loss(partial(loss, **options), "1f1b", stacked(), same_as=None if "reverse" in options else loss)


@pytest.mark.parametrize("mixes", [False, True])
def test_older_weights_that_a_step_hands_on(mixes: bool) -> None:
    """Nothing reads them in the loop; they are cut as the weights that they were."""

    def older(weight: jax.Array, before: jax.Array) -> jax.Array:
        return weight + 0.1 * before[::-1] if mixes else weight

    def step(state: Any, batch: Any) -> Any:
        weights, last, _ = state
        new, losses, _ = gradient_step(weights, batch, loss=loss, schedule="1f1b")
        return (new, jax.tree.map(older, weights, last), last), losses

    state = stacked(), *(jax.tree.map(jnp.zeros_like, stacked()) for _ in range(2))
    (_, last, before), _ = check(step, (state, batch(4)), make_mesh(4), steps=3, feed=feed_state)
    assert not any(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves((last, before)))


def in_fori_loop(params: Any, microbatch: Any) -> jax.Array:
    def body(i: Any, x: jax.Array) -> jax.Array:
        return mark(layer(jax.tree.map(lambda leaf: leaf[i], params), x))

    return squared_error(lax.fori_loop(0, 4, body, microbatch["x"]), microbatch)


def test_fori_loop_over_all_layers() -> None:
    check_loss(in_fori_loop, "sharded", stacked(), same_as=loss)


def test_several_layers_in_each_stage() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        def stage(x: jax.Array, params: Any) -> Any:
            return mark(lax.scan(lambda x, params: (layer(params, x), None), x, params)[0]), None

        by_stage = jax.tree.map(lambda leaf: leaf.reshape(4, 2, *leaf.shape[1:]), params)
        return squared_error(lax.scan(stage, microbatch["x"], by_stage)[0], microbatch)

    check_loss(of_one, "sharded", stacked(8))


def test_marks_in_a_scan_in_a_scan() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        def two(x: jax.Array, params: Any) -> Any:
            return lax.scan(lambda x, params: (mark(layer(params, x)), None), x, params)

        by_two = jax.tree.map(lambda leaf: leaf.reshape(2, 2, *leaf.shape[1:]), params)
        return squared_error(lax.scan(two, microbatch["x"], by_two)[0], microbatch)

    check_loss(of_one, "interleaved-1f1b", stacked(), same_as=loss)


def test_two_scans_and_what_the_first_stacks() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        def encode(x: jax.Array, params: Any) -> Any:
            x = layer(params, x)
            return mark(x), x

        def decode(x: jax.Array, both: Any) -> Any:
            params, skipped = both
            return mark(layer(params, x) + skipped), None

        first, second = (jax.tree.map(lambda leaf: leaf[:2], params), jax.tree.map(lambda leaf: leaf[2:], params))
        x, seen = lax.scan(encode, microbatch["x"], first)
        return squared_error(lax.scan(decode, x, (second, seen[::-1]))[0], microbatch)

    check_loss(of_one, "sharded", stacked())


@pytest.mark.parametrize("plan", ["interleaved-1f1b", "chimera"])
def test_tied_embedding_dropout_counter_and_metrics_of_layers(plan: str) -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        def body(carry: Any, of_layer: Any) -> Any:
            (x, count), (params, key) = carry, of_layer
            keep = jax.random.bernoulli(jax.random.fold_in(key, microbatch["i"]), 0.8, x.shape)
            x = jnp.where(keep, layer(params, x), 0)
            return mark((x, count + 1)), jnp.abs(x).mean()

        keys = jax.random.split(jax.random.key(1), 4)
        first = (microbatch["x"] @ params["embedding"], jnp.int32(0))
        (x, count), sizes = lax.scan(body, first, (params["layers"], keys))
        value = squared_error(x @ params["embedding"].T, microbatch) * count
        return value + 0.01 * sizes.sum(), (sizes, count)

    microbatches = batch(4) | {"i": np.arange(4, dtype=np.int32)}
    params = {"layers": stacked(), "embedding": weights(1)[0]}
    check_loss(of_one, plan, params, microbatches, has_aux=True, steps=2)


@pytest.mark.parametrize(("where", "plan"), in_turn(["body", "around the mark", "all"], PLANS[::-1]))
def test_checkpoint(where: str, plan: str) -> None:
    def body(x: jax.Array, params: Any) -> Any:
        x = mark(layer(params, x))
        return jnp.sin(x) if where == "around the mark" else x, None

    def of_one(params: Any, microbatch: Any) -> Any:
        chosen = body if where == "all" else jax.checkpoint(body)
        return squared_error(lax.scan(chosen, microbatch["x"], params)[0], microbatch)

    same_as = None if where == "around the mark" else loss
    check_loss(jax.checkpoint(of_one) if where == "all" else of_one, plan, stacked(), same_as=same_as)


def test_checkpoint_policy() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        body = jax.checkpoint(
            lambda x, params: (mark(layer(params, x)), None), policy=jax.checkpoint_policies.dots_saveable
        )
        return squared_error(lax.scan(body, microbatch["x"], params)[0], microbatch)

    check_loss(of_one, "1f1b", stacked(), same_as=loss)


def test_cast_to_bfloat16() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        x = microbatch["x"].astype(jnp.bfloat16)
        x = lax.scan(lambda x, params: (mark(layer(params, x)), None), x, low)[0]
        return squared_error(x.astype(jnp.float32), microbatch)

    check_loss(of_one, "interleaved-1f1b", stacked(), tolerance=2e-2)


def cast_in_the_body(params: Any, microbatch: Any, **options: Any) -> jax.Array:
    """Layers in bfloat16, of parameters in float32: each casts its own."""

    def body(x: jax.Array, params: Any) -> Any:
        return mark(layer(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params), x)), None

    x = lax.scan(jax.checkpoint(body) if options else body, microbatch["x"].astype(jnp.bfloat16), params)[0]
    return squared_error(x.astype(jnp.float32), microbatch)


@pytest.mark.parametrize(
    ("plan", "options"), [("interleaved-1f1b", {}), ("zb-h1", {}), ("sharded", {"is_checkpointed": True})]
)
def test_cast_to_bfloat16_in_the_body(plan: str, options: dict[str, Any]) -> None:
    check_loss(partial(cast_in_the_body, **options), plan, stacked(), tolerance=2e-2)


def test_rows_that_are_cast_before_the_loop_are_sent_as_such() -> None:
    """Of four stages on two meshes the rows 1 and 2 are used on the other mesh than that of their block."""
    for schedule, rows in ((jaxpp.Std1F1B(4), 0), (jaxpp.Interleaved1F1B(4, 2), 2)):
        step = partial(adamw_step, schedule=schedule, loss=cast_in_the_body)
        params, moments = adamw_state()
        given = (params, (optax.EmptyState(), moments)), batch(4)
        program = lowered(step, given, make_mesh(2 if rows else 4)).program()
        assert program.rows_sent_bytes == rows * (8 * 8 + 8) * 2
        found = Counter(re.findall(r'stablehlo\.send".*\(tensor<([^>]*)>', program.as_text()))
        assert found["8x8xbf16"] + found["1x8x8xbf16"] == rows


@plans
def test_adamw_with_clipping(plan: str) -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2))

    def step(state: Any, batch: Any, *, schedule: Any) -> Any:
        params, moments = state
        losses, grads = jaxpp.treduce(partial(jax.value_and_grad(loss), params), batch, schedule=schedule)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), losses

    state = (stacked(), optimizer.init(stacked()))
    check_step(step, (state, batch(4)), plan, steps=3, feed=feed_state, tolerance=1e-4)


def test_forward_only() -> None:
    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        def outputs(microbatch: Any) -> Any:
            return lax.scan(lambda x, params: (mark(layer(params, x)), x.mean()), microbatch["x"], params)

        return jaxpp.treduce(outputs, batch, schedule=schedule, operation=(jaxpp.Concat(), jaxpp.Add))

    check_step(step, (stacked(), batch(4)), "sharded")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_inside_a_scan_over_microbatches(schedule: str) -> None:
    def step(params: Any, batch: Any) -> Any:
        def accumulate(total: Any, microbatch: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params, microbatch)
            return jax.tree.map(jnp.add, total, grads), value

        grads, losses = lax.scan(accumulate, jax.tree.map(jnp.zeros_like, params), batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), losses

    check(step, (stacked(), batch(4)), make_mesh(4), schedule=schedule)


def test_explicit_axes() -> None:
    mesh = make_mesh(4, data=2, explicit=True)
    step = partial(gradient_step, schedule=jaxpp.Std1F1B(4), loss=loss)

    def reference(params: Any, batch: Any) -> Any:
        with jax.set_mesh(mesh.lowering_mesh()):
            return jax.jit(step)(jax.device_put(params, P()), jax.device_put(batch, P(None, "data")))

    check(step, (stacked(), batch(4)), mesh, in_shardings=(P(), P(None, "data")), reference=reference)


def adamw_step(state: Any, batch: Any, *, schedule: Any, loss: Any = loss) -> Any:
    """Clipped by the norm of all gradients."""
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2))
    params, moments = state
    losses, grads = jaxpp.treduce(partial(jax.value_and_grad(loss), params), batch, schedule=schedule)
    updates, moments = optimizer.update(grads, moments, params)
    return (optax.apply_updates(params, updates), moments), losses


def adamw_state(count: int = 4) -> Any:
    params = stacked(count)
    return params, optax.adamw(1e-2).init(params)


def sent(schedule: Any, layers: int, meshes: int, microbatches: int, loss: Any = loss) -> Counter[str]:
    """How many values of each type a step sends; activations are 3x8."""
    step = partial(adamw_step, schedule=schedule, loss=loss)
    params, moments = adamw_state(layers)
    state = (params, (optax.EmptyState(), moments))
    program = lowered(step, (state, batch(microbatches, rows=3)), make_mesh(meshes)).program().as_text()
    return Counter(re.findall(r'stablehlo\.send".*\(tensor<([^>]*)>', program))


def one_by_one(params: Any, microbatch: Any) -> jax.Array:
    """The layers without a scan; the first bias is used again at the end."""
    x = microbatch["x"]
    for k in range(4):
        x = mark(layer(jax.tree.map(lambda leaf: leaf[k], params), x))  # noqa: B023
    return squared_error(x + params["b"][3], microbatch)


def test_layers_without_a_scan() -> None:
    check_loss(one_by_one, "interleaved-1f1b", stacked(), steps=2)


def of_limited(params: Any, microbatch: Any) -> jax.Array:
    """The gradient of the stack goes through `maximum`, `clamp` and `select`."""
    w, b = params["w"], params["b"]
    w = jnp.where(jnp.abs(w) < 2, jnp.clip(jnp.maximum(w, 0.01 * w), -1, 1), w)
    return loss({"w": w, "b": jnp.clip(b, -1, 1)}, microbatch)


def test_the_gradient_of_a_stack_goes_through_whatever_treats_rows_alike() -> None:
    check_loss(of_limited, "sharded", stacked(), steps=2)


def of_products(params: Any, microbatch: Any) -> jax.Array:
    """The body computes more of each row alone than a cast, once per step."""

    def body(x: jax.Array, params: Any) -> Any:
        w = 0.5 * params["w"] @ params["w"].T
        return mark(layer({"w": w + w.mean(), "b": jnp.sin(params["b"])}, x)), None

    return squared_error(lax.scan(body, microbatch["x"], params)[0], microbatch)


def test_products_of_rows() -> None:
    check_loss(of_products, "interleaved-1f1b", stacked(), steps=2)


@pytest.mark.parametrize(
    ("loss", "microbatches"), in_turn([loss, one_by_one, in_fori_loop, of_limited, of_products], [4, 8])
)
def test_nothing_stacked_is_sent(loss: Any, microbatches: int) -> None:
    """Each mesh has the rows of its stages, sums their gradients and updates them: only norms meet."""
    found = sent(jaxpp.Std1F1B(4), 4, 4, microbatches, loss)
    assert found.pop("3x8xf32") == 6 * microbatches, "an activation and its gradient between two stages"
    assert set(found) <= {"f32", "i1"}
    assert found.total() <= 12


def test_rows_of_separate_stages_cross_once_per_step() -> None:
    """With several runs of stages on a mesh a row is stored where its block is, and sent where it is used."""
    found = [sent(jaxpp.Interleaved1F1B(4, 2), 4, 2, microbatches) for microbatches in (4, 8)]
    assert [each.pop("3x8xf32") for each in found] == [6 * 4, 6 * 8]
    assert found[0] == found[1]
    rows = {kind: count for kind, count in found[0].items() if kind not in ("f32", "i1")}
    assert rows == {"1x8xf32": 2 * 2, "1x8x8xf32": 2 * 2}, "rows 1 and 2 to their stages, their gradients back"


def by_stage(params: Any, microbatch: Any, stages: int = 2) -> jax.Array:
    """Several layers in each stage."""

    def stage(x: jax.Array, params: Any) -> Any:
        return mark(lax.scan(lambda x, params: (layer(params, x), None), x, params)[0]), None

    params = jax.tree.map(lambda leaf: leaf.reshape(stages, -1, *leaf.shape[1:]), params)
    return squared_error(lax.scan(stage, microbatch["x"], params)[0], microbatch)


@pytest.mark.parametrize(("schedule", "loss"), [(jaxpp.Std1F1B(2), by_stage), (jaxpp.Interleaved1F1B(4, 2), loss)])
def test_each_mesh_has_its_part_of_the_state(schedule: Any, loss: Any) -> None:
    """What the step returns is stored split by stage, goes back in as it is, and reads like any array."""
    mesh = make_mesh(2)
    step = jaxpp.mpmd_jit_with_loop(partial(adamw_step, schedule=schedule, loss=loss), mpmd_mesh=mesh, donate_argnums=0)
    params, moments = adamw_state()
    state, _ = step((params, (optax.EmptyState(), moments)), batch(4))
    for leaf in jax.tree.leaves(state):
        if leaf.ndim:
            assert leaf.sharding.spec == P("mpmd")
            assert leaf.sharding.mesh == mesh.jax_mesh
            assert [shard.data.shape[0] for shard in leaf.addressable_shards] == [2, 2]
    again, _ = step(state, batch(4))
    assert jax.tree.map(lambda leaf: leaf.sharding, again) == jax.tree.map(lambda leaf: leaf.sharding, state)


@pytest.mark.parametrize("plan", ["interleaved-1f1b", "sharded", "chimera"])
def test_what_needs_all_rows(plan: str) -> None:
    """After the loop: sums within rows and over them, products of matrices, other orders, slices, one big vector."""

    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        losses, grads = jaxpp.treduce(partial(jax.value_and_grad(loss), params), batch, schedule=schedule)
        w, g = params["w"], grads["w"]
        flat = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(grads)])
        found = {
            "square": jnp.einsum("lij,ljk->lik", g, g),
            "rows": g.mean(axis=(1, 2)),
            "columns": g.max(axis=0),
            "norm": jnp.linalg.norm(flat),
            "swapped": g.transpose(1, 0, 2) + jnp.ones((8, 4, 1)),
            "back": g[::-1] + w,
            "first": g[0],
            "some": g[1:, :2],
            "scaled": g * jnp.arange(4.0)[:, None, None],
            "sorted": jnp.sort(g, axis=0),
            "factored": g / jnp.sqrt(1e-3 + (g**2).mean(axis=1, keepdims=True)),
        }
        new = {"w": w - 0.1 * found["square"] * found["rows"][:, None, None], "b": params["b"] - grads["b"]}
        return new, losses, found

    check_step(step, (stacked(), batch(4)), plan, steps=2, feed=lambda results, args: (results[0], args[1]))


def test_an_argument_that_is_also_read_whole_stays_whole() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        return loss(params, microbatch) + 1e-2 * sum((leaf**2).sum() for leaf in jax.tree.leaves(params))

    check_loss(of_one, "interleaved-1f1b", stacked(), steps=2)


@pytest.mark.parametrize("count", [3, 6])
def test_layers_that_do_not_divide(count: int) -> None:
    """Six layers on four meshes can't be cut evenly: each mesh has the whole stack, and the numbers are the same."""
    schedule = jaxpp.Std1F1B(2) if count == 3 else jaxpp.Interleaved1F1B(6, 2)

    def of_one(params: Any, microbatch: Any) -> Any:
        def body(x: jax.Array, params: Any) -> Any:
            return mark(layer(params, x)), None

        if count == 6:
            return squared_error(lax.scan(body, microbatch["x"], params)[0], microbatch)
        first, rest = (jax.tree.map(lambda leaf: leaf[:1], params), jax.tree.map(lambda leaf: leaf[1:], params))
        x = lax.scan(body, microbatch["x"], first)[0]
        x = lax.scan(lambda x, params: (layer(params, x), None), x, rest)[0]
        return squared_error(x, microbatch)

    step = partial(gradient_step, schedule=schedule, loss=of_one)
    check(step, (stacked(count), batch(4)), make_mesh(2), steps=2, feed=feed_state)


def test_an_evaluation_takes_the_state_of_the_training_as_it_is() -> None:
    mesh = make_mesh(4)
    schedule = jaxpp.Std1F1B(4)
    step = jaxpp.mpmd_jit_with_loop(partial(gradient_step, schedule=schedule, loss=loss), mpmd_mesh=mesh)
    params, *_ = step(stacked(), batch(4))

    def evaluate(params: Any, batch: Any) -> Any:
        return jaxpp.treduce(partial(loss, params), batch, schedule=schedule)

    found = jaxpp.mpmd_jit_with_loop(evaluate, mpmd_mesh=mesh)
    wanted, _ = found.compile(params, batch(4)).in_shardings[0]
    assert jax.tree.map(lambda leaf: leaf.sharding, wanted) == jax.tree.map(lambda leaf: leaf.sharding, params)
    np.testing.assert_allclose(found(params, batch(4)), jax.jit(evaluate)(stacked_values(params), batch(4)), rtol=1e-5)


@pytest.mark.parametrize("spec", [P("mpmd"), P("mpmd", "data"), P(("mpmd", "data"))])
def test_shardings_of_stacks_that_the_user_asks_for(spec: P) -> None:
    mesh = make_mesh(2, data=2)
    params = jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh.jax_mesh, spec)), stacked())
    step = partial(gradient_step, schedule=jaxpp.Std1F1B(2), loss=by_stage)
    options: dict[str, Any] = {"in_shardings": (spec, P(None, "data")), "out_shardings": (spec, P(), spec)}
    found = check(step, (params, batch(4)), mesh, steps=2, feed=feed_state, **options)
    assert {leaf.sharding.spec for leaf in jax.tree.leaves(found[0])} == {spec}


def test_a_raw_key_is_no_stack() -> None:
    """Its generator reads the two words of a key one by one, and there are two meshes."""

    def step(params: Any, key: jax.Array, batch: Any) -> Any:
        def of_one(params: Any, microbatch: Any) -> Any:
            x = by_stage(params, microbatch) * jax.random.uniform(jax.random.fold_in(key, 1))
            return x + jax.random.normal(key)

        return jaxpp.treduce(partial(jax.value_and_grad(of_one), params), batch, schedule=jaxpp.Std1F1B(2)), key

    check(step, (stacked(), jax.random.key_data(jax.random.key(0)), batch(4)), make_mesh(2))


RESHAPE = (
    "scan over the 2 stages, and over the layers of each inside: "
    "reshape the stacked parameters to (2, layers per stage, ...)"
)
CUTS = "say how many of the 4 layers each stage has: cuts=[{0}] (jaxpp-opt: --cuts {1})"
TWO, ONE, THREE = CUTS.format("2, 2", "2,2"), CUTS.format("4", "4"), CUTS.format("2, 1, 1", "2,1,1")
OTHER = "take a schedule of 4 stages"


@pytest.mark.parametrize(
    ("schedule", "name", "meshes", "ways"),
    [
        (jaxpp.Std1F1B(2), "1f1b", 2, [RESHAPE, TWO, f"{OTHER}, such as 1f1b{{chunks=2}} on 2 meshes"]),
        (jaxpp.Std1F1B(2), "1f1b", 4, [f"{OTHER}, such as 1f1b on 4 meshes", RESHAPE, TWO]),
        (jaxpp.GPipe(1), "gpipe", 1, [ONE, f"{OTHER}, such as gpipe{{chunks=4}} on 1 mesh"]),
        (jaxpp.ZeroBubble(3), "zb-h1", 4, [f"{OTHER}, such as zb-h1 on 4 meshes", THREE]),
        (jaxpp.ZeroBubble(3), "zb-h1", 3, [THREE, OTHER]),
        (jaxpp.Std1F1B(8), "1f1b", 4, [f"{OTHER}, such as 1f1b on 4 meshes"]),
        (jaxpp.Interleaved1F1B(8, 4), "interleaved-1f1b", 2, [f"{OTHER}, such as interleaved-1f1b on 2 meshes"]),
        (jaxpp.Std1F1B(8), "1f1b", 3, [OTHER]),
    ],
)
def test_a_mark_for_each_layer_where_the_schedule_has_other_stages(
    schedule: Any, name: str, meshes: int, ways: list[str]
) -> None:
    """The hint offers what can work with as many layers and meshes as there are, and nothing else."""
    step = partial(gradient_step, schedule=schedule, loss=loss)
    with pytest.raises(jaxpp.PassError) as info:
        jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(meshes))(stacked(), batch(4))
    assert "test_stacked_layers.py:" in str(info.value)
    stages = schedule.build(4).stages
    found = (
        f"found 4 stage marks, one for each layer of a scan; the schedule {name} has {stages} stage{'s' * (stages > 1)}"
    )
    assert str(info.value).endswith(f"{found}\n  {'; or '.join(ways)}")


def stacked_values(params: Any) -> Any:
    return jax.tree.map(np.asarray, params)
