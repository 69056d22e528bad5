"""Rules and stops of other people: whether the worlds can call them, told before they do.

A call that does not fit raises in the caller, far below the policy and with no line of the user's file in it.
"""

import inspect

from ...foreign_code import defined_at, is_foreign, said


def check_rule(rule: object) -> None:
    """That a rule of a verifier can be called: our own are known to fit, and cost nothing here.

    Raises:
        ValueError: it cannot; names the class, and where it is defined.
    """
    if is_foreign(type(rule)):
        _check_method(rule, "accepts", "facts")
        if getattr(rule, "escalates", None) is not None:
            _check_method(rule, "escalates", "facts")


def check_stop(stop: object) -> None:
    """That a stop of a draft can be called; raises as `check_rule`."""
    if is_foreign(type(stop)):
        _check_method(stop, "holds", "signal", "product")
        if getattr(stop, "factor", None) is not None:
            _check_method(stop, "factor", "signal", "index")


def _check_method(rule: object, name: str, *arguments: str) -> None:
    method, cls = getattr(rule, name), type(rule)
    expected = f"{cls.__name__}.{name} must be a method that takes ({', '.join(arguments)})"
    if not callable(method):
        raise ValueError(f"{expected}, got {said(method, repr)}{defined_at(cls)}")
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # not written in Python: what it takes is not known
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{expected}, got {signature}: {error}{defined_at(cls)}") from None
