"""Tiny models on disk, saved once a session."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.worker.engine.tiny import Kind, save_tiny_model, tiny_model, tiny_tokenizer
from worker.engine.planner import VerifyAll


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny products are slower on several threads, and tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _every_proposal_is_verified() -> Iterator[None]:
    """What the pair's own planner leaves out depends on the clock; tests of the planner name it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.engine.engine.make_planner", lambda pair, _: VerifyAll(pair.gamma))
        yield


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], Path]:
    """The folder of a target model of each kind."""
    root = tmp_path_factory.mktemp("targets")

    def folder(kind: Kind) -> Path:
        path = root / kind
        return path if path.exists() else save_tiny_model(path, kind)

    return folder


@pytest.fixture(scope="session")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], Path]:
    """A draft model for each target: the target with its weights disturbed, and so right now and then."""
    root = tmp_path_factory.mktemp("drafts")

    def folder(kind: Kind) -> Path:
        path = root / kind
        if not path.exists():
            model = tiny_model(kind)
            generator = torch.Generator().manual_seed(1)
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.data += 0.03 * noise
            model.save_pretrained(path)
            tiny_tokenizer().save_pretrained(path)
        return path

    return folder
