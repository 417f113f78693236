"""What the code of knockgraph never does: run what it reads. Each rule is shown to find what it forbids."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "knockgraph"
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "code", "runpy", "pty"}
CALLS = {
    "instantiate",
    "hydra.utils.instantiate",
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "np.fromfile",
}
CALLS |= {f"os.{name}{kind}" for name in ("exec", "spawn") for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")}
UNSAFE_YAML = {"yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.full_load_all"}


def forbidden(code: str) -> Iterator[str]:
    """What must not stand in a module, with its line."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").split(".")[0]] if node.level == 0 else []
        else:
            names = []
        yield from (f"line {node.lineno}: import {name}" for name in names if name in MODULES)
        if isinstance(node, ast.Call):
            yield from (f"line {node.lineno}: {what}" for what in _forbidden_call(node))


def _forbidden_call(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name in CALLS or name.removeprefix("builtins.") in CALLS:
        yield f"{name}()"
    if given.get("shell", "False") != "False":
        yield "shell=True"
    if name in UNSAFE_YAML:
        yield f"{name}(), use yaml.safe_load"
    if name.endswith("YAML") and given.get("typ", "") in ("'unsafe'", '"unsafe"'):
        yield "YAML(typ='unsafe')"
    if name in ("torch.load", "torch.hub.load") and given.get("weights_only") != "True":
        yield f"{name}() without weights_only=True"
    if given.get("allow_pickle", "False") != "False" or given.get("trust_remote_code", "False") != "False":
        yield "what is loaded is trusted"


def test_nothing_that_is_read_is_run() -> None:
    found = {str(path.relative_to(SOURCE)): list(forbidden(path.read_text(encoding="utf-8"))) for path in FILES}
    assert len(found) > 150
    assert {path: what for path, what in found.items() if what} == {}


def test_no_config_names_code() -> None:
    """Hydra makes an object of whatever ``_target_`` names, if it is asked to."""
    configs = sorted((SOURCE / "conf").rglob("*.yaml"))
    assert len(configs) > 20
    assert [path.name for path in configs if "_target_" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "from os import path\nimport joblib.memory",
        "eval('1')",
        "exec(text)",
        "builtins.eval(x)",
        "os.system('ls')",
        "os.execvp('ls', ['ls'])",
        "run(command, shell=True)",
        "yaml.load(text, Loader=yaml.Loader)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_rules_find_it(code: str) -> None:
    assert list(forbidden(code))


@pytest.mark.parametrize(
    "code",
    ["model.eval()", "re.compile('a')", "torch.compile(f)", "yaml.safe_load(x)", "torch.load(p, weights_only=True)"],
)
def test_the_rules_find_nothing_else(code: str) -> None:
    assert not list(forbidden(code))
