"""Checks that a model folder loads without this package. Run it as a script, by path:

    python -P alone.py FOLDER

It prints one JSON object: `problem` (null, or one line) and `parameters` (their number). Weights are read tensor by
tensor and not kept, so a model larger than memory can be checked.
"""

import json
import sys


def check(folder: str) -> int:
    """Loads the model in `folder` and returns its number of parameters.

    Raises:
        Exception: an error of its code or of transformers, with a note that names the part being loaded.
        ValueError: weights are missing, unused, or have other shapes than the model's.
    """
    import transformers

    model = None
    for name, options in {
        "AutoConfig": {},
        "AutoProcessor": {},
        "AutoImageProcessor": {},
        "AutoModel": {"device_map": "meta", "output_loading_info": True, "ignore_mismatched_sizes": True},
    }.items():
        try:
            loaded = getattr(transformers, name).from_pretrained(folder, trust_remote_code=True, **options)
        except Exception as error:
            error.add_note(name)
            raise
        if name == "AutoModel":
            model, report = loaded
            for kind in ("missing", "unexpected", "mismatched"):
                keys = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report[f"{kind}_keys"])
                if keys:
                    raise ValueError(f"weights: expected the model's own; got {len(keys)} {kind}, e.g. {keys[0]}")
    assert model is not None
    return sum(parameter.numel() for parameter in model.parameters())


def main(folder: str) -> None:
    sys.modules["arr_coc"] = None  # type: ignore[assignment]  # not to be imported: its classes would replace the code
    parameters, problem = 0, None
    try:
        parameters = check(folder)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        where = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
        problem = f"{where}{lines[0] if lines else ''} ({type(error).__name__})"
    print(json.dumps({"problem": problem, "parameters": parameters}))


if __name__ == "__main__":
    main(sys.argv[1])
