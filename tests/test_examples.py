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
    """From the same uploaded state one step gives the same loss and parameters, at steps 1, 10 and 50."""
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
            assert b.loss == pytest.approx(a.loss, rel=2e-4, abs=1e-6), f"step {i}"
            _assert_close(on_wgpu.download_params(), on_numpy.download_params(), i)
    first, second = (float(np.mean(losses[k][-5:])) for k in ("numpy", "wgpu"))
    assert second == pytest.approx(first, rel=0.02, abs=1e-4)
    on_numpy.destroy()
    on_wgpu.destroy()


def _assert_close(got: dict[str, Any], want: dict[str, Any], step: int) -> None:
    for name, w in want.items():
        # An element whose gradient is all rounding can move by a whole learning rate either way under
        # Adam, so a few elements may differ by that much; all others agree closely.
        apart = np.abs(got[name] - w) > 1e-4 * np.maximum(1.0, np.abs(w))
        assert np.mean(apart) < 0.02, f"step {step}: {name} differs in {np.mean(apart):.1%} of its elements"
        np.testing.assert_allclose(got[name], w, atol=0.12, err_msg=f"step {step}: {name}")
