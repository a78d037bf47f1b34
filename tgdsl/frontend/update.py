"""Naming the next value of a persistent tensor."""

from __future__ import annotations

from tgdsl.errors import DTypeError, ShapeError, TraceError
from tgdsl.ir import AnyTensor, Tensor, current_graph, operand_error, user_site


def update(state: Tensor, value: Tensor) -> None:
    """Name the next value of a persistent tensor, which takes effect when the step is done.

    Reading the tensor gives its value before the step, before and after this call.

    Args:
        state: A tensor declared with `state(...)`.
        value: A tensor of the same shape; no gradient flows through it into the state.

    Raises:
        TraceError: If `state` was not declared with `state(...)`, or was updated before.
        ShapeError: If the types differ.
    """
    graph = current_graph("update")
    for t in (state, value):
        if not isinstance(t, AnyTensor):
            raise DTypeError(f"update: expected a tensor, got {type(t).__name__}", site=user_site())
        if t.graph is not graph:
            raise TraceError(
                f"update: {t!r} does not belong to this trace.",
                hint="use the model and the inputs that the forward receives, not values from outside",
                site=user_site(),
            )
    if state.node.op.name != "state":
        raise TraceError(
            f"update: the target is {graph.origin(state.node)}, not declared with state(...)",
            site=user_site(),
        )
    if value.type != state.type:
        raise operand_error(ShapeError, "update: the next value has another type", state=state, value=value)
    name = state.node.attrs["name"]
    if name in graph.updates:
        raise TraceError(f"update: {name!r} is updated twice", site=user_site())
    graph.updates[name] = value
