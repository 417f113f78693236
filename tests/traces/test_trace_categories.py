"""The rules: what the usual names count to, files of one's own, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from knockgraph.errors import KnockgraphError
from knockgraph.phases import PHASES, label
from knockgraph.traces.categories import Categories
from knockgraph.traces.self_time import Judge

SPEC = (
    *("data loading", "masks/graph", "forward", "loss", "backward", "optimizer", "DDP communication"),
    *("tensor operations", "kernels", "copies", "unmatched"),
)


@pytest.fixture(scope="module")
def categories() -> Categories:
    return Categories()


def verdict(categories: Categories, name: str, cat: str = "cpu_op", device: bool = False) -> tuple[str, bool]:
    found = Judge(categories, [(name, cat)], device).verdict(0, 0)
    return ("unmatched", False) if found is None else (categories.names[found.category], found.phase)


def test_all_categories_are_there(categories: Categories) -> None:
    assert set(SPEC) <= set(categories.names)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("part", ["", "some part"])
def test_every_phase_of_our_own_is_one(categories: Categories, phase: str, part: str) -> None:
    category, is_phase = verdict(categories, label((phase, part)), "user_annotation")
    assert is_phase
    assert category not in ("unmatched", "tensor operations")


@pytest.mark.parametrize(
    ("name", "cat", "expected"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation", "data loading"),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", "user_annotation", "data loading"),
        ("knockgraph::host to device", "user_annotation", "copies"),
        ("[pl][profile][Strategy]SingleDeviceStrategy.batch_to_device", "user_annotation", "copies"),
        ("knockgraph::masks", "user_annotation", "masks/graph"),
        ("[pl][profile][Strategy]DDPStrategy.training_step", "user_annotation", "forward"),
        ("[pl][module]knockgraph.models.hetero.HeteroCell: model", "user_annotation", "forward"),
        ("nn.Module: Linear_3", "python_function", "forward"),
        ("nn.Module: MSELoss_0", "python_function", "loss"),
        ("knockgraph::loss/wasserstein", "user_annotation", "loss"),
        ("aten::mse_loss", "cpu_op", "loss"),
        ("aten::binary_cross_entropy_with_logits", "cpu_op", "loss"),
        ("[pl][profile][Strategy]SingleDeviceStrategy.backward", "user_annotation", "backward"),
        ("autograd::engine::evaluate_function: MmBackward0", "cpu_op", "backward"),
        ("torch::autograd::AccumulateGrad", "cpu_op", "backward"),
        ("CompiledFunctionBackward", "cpu_op", "backward"),
        ("torch/_tensor.py(525): backward", "python_function", "backward"),
        ("Optimizer.step#AdamW.step", "user_annotation", "optimizer"),
        ("Optimizer.zero_grad#AdamW.zero_grad", "user_annotation", "optimizer"),
        ("[pl][profile][LightningModule]Task.optimizer_step", "user_annotation", "optimizer"),
        ("[pl][profile][LightningModule]Task.configure_gradient_clipping", "user_annotation", "optimizer"),
        ("[pl][profile][Callback]ModelCheckpoint.on_train_batch_end", "user_annotation", "callbacks"),
        ("[pl][profile]run_training_batch", "user_annotation", "callbacks"),
        ("nccl:all_reduce", "cpu_op", "DDP communication"),
        ("c10d::allreduce_", "cpu_op", "DDP communication"),
        ("gloo:all_reduce", "user_annotation", "DDP communication"),
    ],
)
def test_phases(categories: Categories, name: str, cat: str, expected: str) -> None:
    assert verdict(categories, name, cat) == (expected, True)


@pytest.mark.parametrize(
    ("name", "cat", "expected"),
    [
        ("aten::mm", "cpu_op", "tensor operations"),
        ("aten::mse_loss_backward", "cpu_op", "tensor operations"),
        ("knockgraph::csr_sum", "cpu_op", "tensor operations"),
        ("cudaLaunchKernel", "cuda_runtime", "tensor operations"),
        ("aten::copy_", "cpu_op", "copies"),
        ("cudaMemcpyAsync", "cuda_runtime", "copies"),
        ("cudaDeviceSynchronize", "cuda_runtime", "device waits"),
        ("ProfilerStep#", "user_annotation", "python"),
        ("some/file.py(3): f", "python_function", "python"),
        ("my own annotation", "user_annotation", "unmatched"),
    ],
)
def test_operators(categories: Categories, name: str, cat: str, expected: str) -> None:
    assert verdict(categories, name, cat) == (expected, False)


@pytest.mark.parametrize(
    ("name", "cat", "expected"),
    [
        ("void at::native::vectorized_elementwise_kernel<4>", "kernel", "kernels"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "kernel", "DDP communication"),
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", "copies"),
        ("Memset (Device)", "gpu_memset", "copies"),
    ],
)
def test_on_the_device(categories: Categories, name: str, cat: str, expected: str) -> None:
    assert verdict(categories, name, cat, device=True) == (expected, False)


@pytest.mark.parametrize(
    ("name", "sync"),
    [
        ("cudaStreamSynchronize", True),
        ("cudaDeviceSynchronize", True),
        ("cudaEventSynchronize", True),
        ("hipStreamSynchronize", True),
        ("cudaMemcpy", True),
        ("cudaMemcpy2D", True),
        ("cudaMemcpyAsync", False),
        ("cudaStreamWaitEvent", False),
        ("cudaEventQuery", False),
        ("aten::item", False),
    ],
)
def test_syncs(categories: Categories, name: str, sync: bool) -> None:
    assert categories.is_sync(name) == sync


def test_values_read_by_the_host(categories: Categories) -> None:
    assert categories.is_item("aten::_local_scalar_dense")
    assert not categories.is_item("aten::item")  # it contains the other: counting both would count twice


def test_without_lists_nothing_is_a_sync(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('categories = ["a"]\n')
    own = Categories(path)
    assert own.names == ("a", "unmatched")
    assert not own.is_sync("cudaDeviceSynchronize")
    assert not own.is_item("aten::_local_scalar_dense")


RULE = 'categories = ["a"]\n[[rule]]\n'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a = [", r"are not valid TOML \(.*\); correct the file"),
        ("", r"'categories' must list names, each once, without 'unmatched' and 'idle'"),
        ('categories = ["a", "a"]', r"each once"),
        ('categories = ["idle"]', r"without 'unmatched' and 'idle'"),
        ('categories = "a"', r"'categories' must be a list of strings"),
        ('categories = ["a"]\nmore = 1', r"'more' is not known; use categories, filled_by, gaps, items, rule, syncs"),
        ('categories = ["a"]\ngaps = ["b"]', r"gaps: 'b' is not one of 'categories'; add it there"),
        ('categories = ["a"]\nrule = 5', r"rules are written as \[\[rule\]\]"),
        ('categories = ["a"]\nsyncs = ["("]', r"syncs '\(' is not a regular expression"),
        (RULE + 'category = "b"\nname = ["x"]', r"rule 1: category: 'b' is not one of 'categories'"),
        (RULE + 'category = "a"', r"rule 1: it matches everything; give it a 'name', a 'cat' or an 'inside'"),
        (RULE + 'category = "a"\nname = []', r"rule 1: 'name' is an empty list, which matches nothing"),
        (RULE + 'category = "a"\nname = ["("]', r"rule 1: name '\(' is not a regular expression"),
        (RULE + 'category = "a"\nname = "x"', r"rule 1: 'name' must be a list of strings"),
        (RULE + 'category = "a"\nname = ["x"]\non = "gpu"', r"rule 1: 'on' is 'gpu'; use \"host\" or \"device\""),
        (RULE + 'category = "a"\nname = ["x"]\nphase = 1', r"rule 1: 'phase' is 1; use true or false"),
        (RULE + 'category = "a"\nname = ["x"]\non = "device"\nphase = true', r"nothing runs inside a kernel"),
        (
            RULE + 'category = "a"\nnames = ["x"]',
            r"rule 1: 'names' is not known; use cat, category, inside, name, on, ph",
        ),
    ],
)
def test_refused(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(KnockgraphError, match=match) as caught:
        Categories(path)
    assert str(path) in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(KnockgraphError, match=r"cannot read the categories .*none\.toml: there is no such file"):
        Categories(tmp_path / "none.toml")


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()
    path = tmp_path / "c.toml"
    path.write_text(page.split("```toml\n")[1].split("```")[0])
    own = Categories(path)
    assert own.names == ("tokenizer", "model", "rest", "unmatched")
    assert len(own.rules) == 4
