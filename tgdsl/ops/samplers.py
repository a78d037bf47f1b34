"""Sample inputs that families of ops share."""

from __future__ import annotations

from tgdsl.ir import Draw, Sample, Sampler


def unary(lo: float = -2.0, hi: float = 2.0, *, away: tuple[float, ...] = ()) -> Sampler:
    """One operand of any shape, away from kinks."""

    def sample(draw: Draw) -> Sample:
        return Sample.of(draw.array("x", draw.shape("shape"), lo, hi, away=away))

    return sample


def binary(lo: float = -2.0, hi: float = 2.0, *, away_b: tuple[float, ...] = ()) -> Sampler:
    """Two operands, one of them broadcast in one of several ways."""

    def sample(draw: Draw) -> Sample:
        shape = draw.shape("shape")
        other = draw.choice("other", ("same", "suffix", "ones", "scalar"))
        small = {
            "same": shape,
            "suffix": shape[1:],
            "ones": tuple(1 if i % 2 else n for i, n in enumerate(shape)),
            "scalar": (),
        }[other]
        left, right = (shape, small) if draw.choice("side", ("left", "right")) == "left" else (small, shape)
        return Sample.of(draw.array("a", left, lo, hi), draw.array("b", right, lo, hi, away=away_b))

    return sample


def apart(gap: float = 0.05) -> Sampler:
    """Two operands of one shape, nowhere closer than `gap`: ops with a kink at equality."""

    def sample(draw: Draw) -> Sample:
        shape = draw.shape("shape")
        a, d = draw.array("a", shape), draw.array("difference", shape, away=(0.0,))
        sign = (d >= 0) * 2.0 - 1.0
        return Sample.of(a, a + d + sign * gap)

    return sample
