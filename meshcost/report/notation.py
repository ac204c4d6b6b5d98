"""How a page writes formulas and figures: as ``pretty`` does, but counting functions as mathematics writes them."""

from fractions import Fraction

from sympy import Expr, oo
from sympy.printing.str import StrPrinter

from meshcost.formula import power2_floor
from meshcost.report.collectives_picture import Glyphs


def written(formula: Expr, glyphs: Glyphs) -> str:
    """Write a formula for people.

    >>> from meshcost.formula import log2_ceiling
    >>> from meshcost.report.collectives_picture import ASCII, UNICODE
    >>> from meshcost.symbols import S, n
    >>> written(S * log2_ceiling(n), UNICODE), written(S / power2_floor(2 * n - 1), ASCII)
    ('S*⌈log2 n⌉', 'S/2**floor(log2 (2*n - 1))')
    """
    return str(_Printer(glyphs).doprint(formula))


def multiple(amount: Fraction, unit: str = "") -> str:
    """Write a figure as a multiple of a unit.

    >>> multiple(Fraction(7, 4), "S"), multiple(Fraction(1), "S"), multiple(Fraction(0), "S"), multiple(Fraction(1, 3))
    ('1.75 S', 'S', '0', '0.3333')
    """
    text = f"{float(amount):.4g}"
    return text if not unit or not amount else unit if amount == 1 else f"{text} {unit}"


def limit(amount: Expr | None, unit: str, glyphs: Glyphs) -> str:
    """Write what a figure comes to; ``-`` where it comes to nothing.

    >>> from meshcost.report.collectives_picture import ASCII
    >>> limit(oo, "S", ASCII), limit(None, "S", ASCII)
    ('oo', '-')
    """
    if amount is None:
        return "-"
    return glyphs.infinity if amount == oo else multiple(Fraction(str(amount)), unit)


class _Printer(StrPrinter):
    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self._glyphs = glyphs

    def _as_ordered_terms(self, expr: Expr, order: str | None = None) -> list[Expr]:
        """What is taken away comes last: n - g, and not -g + n."""
        return sorted(
            super()._as_ordered_terms(expr, order), key=lambda term: bool(term.could_extract_minus_sign())
        )

    def _print_log2_ceiling(self, formula: Expr) -> str:
        """Of a power of two the logarithm is whole."""
        (of,) = formula.args
        if isinstance(of, power2_floor):
            return self._logarithm(of.args[0], self._glyphs.floor)
        return self._logarithm(of, self._glyphs.ceiling)

    def _print_power2_floor(self, formula: Expr) -> str:
        return f"2**{self._logarithm(formula.args[0], self._glyphs.floor)}"

    def _logarithm(self, of: Expr, brackets: tuple[str, str]) -> str:
        text = self.doprint(of)
        return f"log2 {text}".join(brackets) if of.is_Symbol else f"log2 ({text})".join(brackets)
