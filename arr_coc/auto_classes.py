"""Registers the classes for `model_type` "arr_coc" with transformers' Auto classes, on demand.

`import arr_coc` loads neither torch nor transformers. The classes register as soon as a program imports transformers or
a module of `arr_coc.modeling` that needs it, whichever comes first, so `import arr_coc` is all that
`AutoModel.from_pretrained` needs.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from functools import partial


def register() -> None:
    """Registers the classes with transformers' Auto classes; may be repeated."""
    import transformers

    from . import families  # noqa: F401  registers its members
    from .modeling.configuration_arr_coc import AUTO_MODELS, ArrCocConfig
    from .modeling.image_processing_arr_coc import ArrCocImageProcessor
    from .modeling.modeling_arr_coc import ArrCocForConditionalGeneration
    from .modeling.processing_arr_coc import ArrCocProcessor

    transformers.AutoConfig.register(ArrCocConfig.model_type, ArrCocConfig, exist_ok=True)
    for name in AUTO_MODELS:
        getattr(transformers, name).register(ArrCocConfig, ArrCocForConditionalGeneration, exist_ok=True)
    transformers.AutoProcessor.register(ArrCocConfig, ArrCocProcessor, exist_ok=True)
    transformers.AutoImageProcessor.register(
        ArrCocConfig, image_processor_classes={"pil": ArrCocImageProcessor}, exist_ok=True
    )


def register_with_transformers() -> None:
    """Registers the classes now if transformers is imported already, else right after its import."""
    if "transformers" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport(importlib.abc.MetaPathFinder):
    """A post-import hook: calls `register` once, after the first import of transformers or a module that needs it."""

    modules = f"{__package__}.modeling."
    alone = (f"{modules}budgets", f"{modules}documents", f"{modules}image_loading")
    """Modules that the command line needs before torch: they import no others at first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        needs = fullname.startswith(self.modules) and fullname not in self.alone
        if fullname != "transformers" and not needs:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(_execute, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _execute(execute: Callable[[types.ModuleType], None], module: types.ModuleType) -> None:
    execute(module)
    register()
