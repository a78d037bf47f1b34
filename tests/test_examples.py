"""Every example in short mode on both backends, and both backends against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples import char_transformer, digits, digits_cnn, sine, xor

EXAMPLES = {"xor": xor, "sine": sine, "digits": digits, "digits_cnn": digits_cnn, "char_transformer": char_transformer}
STEPS = {"xor": 60, "sine": 60, "digits": 60, "digits_cnn": 60, "char_transformer": 52}
"""Steps of the comparison."""

examples = pytest.mark.parametrize("name", list(EXAMPLES))


@examples
def test_example_reaches_its_result_on_numpy(name: str) -> None:
    EXAMPLES[name].main(short=True, backend="numpy")


@pytest.mark.gpu
@examples
def test_example_reaches_its_result_on_wgpu(engine: Any, name: str) -> None:
    EXAMPLES[name].main(short=True, backend="wgpu")


@pytest.mark.gpu
@examples
def test_backends_agree_step_by_step(engine: Any, name: str) -> None:
    """From the same uploaded state one step gives the same loss, gradients and parameters, at steps 1, 10 and 50."""
    example = EXAMPLES[name]
    steps = STEPS[name]
    batches = list(example.batches(steps))
    on_numpy, on_wgpu = example.build("numpy"), example.build("wgpu")
    losses: dict[str, list[float]] = {"numpy": [], "wgpu": []}
    for i, batch in enumerate(batches, 1):
        arrays = {k: getattr(batch, k).numpy() for k in type(batch).__tg_inputs__}
        if i in (1, 10, 50):
            on_wgpu.upload_params(on_numpy.download_params())
        a, b = on_numpy.step(**arrays), on_wgpu.step(**arrays)
        losses["numpy"].append(a.loss)
        losses["wgpu"].append(b.loss)
        if i in (1, 10, 50):
            assert b.loss == pytest.approx(a.loss, rel=2e-6, abs=1e-7), f"step {i}"
            _assert_close(on_wgpu, on_numpy, i)
    first, second = (float(np.mean(losses[k][-5:])) for k in ("numpy", "wgpu"))
    assert second == pytest.approx(first, rel=0.02, abs=1e-4)
    on_numpy.destroy()
    on_wgpu.destroy()


def _assert_close(got: Any, want: Any, step: int) -> None:
    grads, wanted_grads = got.download_param_grads(), want.download_param_grads()
    params, wanted_params = got.download_params(), want.download_params()
    for name, w in wanted_params.items():
        g = wanted_grads[name]
        largest = float(np.max(np.abs(g)))
        # Both sum the same products in f32, each in its own order: (2e-6 + 1e-7 sqrt(terms)) of the largest element.
        np.testing.assert_allclose(grads[name], g, atol=8e-6 * largest, rtol=0, err_msg=f"step {step}: d {name}")
        # Adam divides by the gradient's own size, so an element whose gradient is all rounding may move anywhere.
        sure = np.abs(g) > 1e-3 * largest
        np.testing.assert_allclose(params[name][sure], w[sure], atol=2e-6, rtol=2e-6, err_msg=f"step {step}: {name}")
        np.testing.assert_allclose(params[name], w, atol=1e-3, err_msg=f"step {step}: {name}")
