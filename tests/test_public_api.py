"""What `tgdsl` exports, as a frozen list: a name that comes or goes is a decision."""

from __future__ import annotations

import tgdsl

NAMES = """
Adam AdamW AnyTensor Arg BoolTensor CaptureError Captures Conv2d DTypeError DeclarationError DeviceError DimError
Embedding F32 FitResult Forward FrozenError GradientError Graph HandleError I32 Inference InputError IntTensor
LayerNorm Linear LoweringError Minibatches NonFiniteError OpDefinitionError OptionError Param ParameterError RunResult
SGD ShapeError StepResult Tensor TgdslError TraceError Trained arg build capture compile_forward compile_module f32
forward i32 init inputs lr minibatches module nn ops optim param param_if parameters repeat state tied trace
trace_into update
""".split()

MODULES = {
    "autograd", "checkpoint", "codegen", "data", "dtypes", "errors", "floor", "frontend", "ir", "passes", "pipeline",
    "plan", "program", "reference", "runtime", "schedule", "session", "testing", "tuning",
    "verify",
}  # fmt: skip


def test_exported_names() -> None:
    found = {n for n in vars(tgdsl) if not n.startswith("_")} - MODULES
    assert found == set(NAMES)


def test_importing_the_package_loads_no_test_tool() -> None:
    import subprocess
    import sys

    code = "import tgdsl, sys; print([m for m in ('hypothesis', 'pytest', 'wgpu') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
