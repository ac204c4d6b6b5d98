"""Formulas: numbers are SymPy's, text reads back, and elasticity is the slope that one can measure."""

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sympy import Integer, Rational, ceiling, floor
from sympy.functions.elementary.miscellaneous import Max, Min

from meshcost import testing
from meshcost.errors import FormulaError
from meshcost.formula import bind, elasticity, free_symbols, log2_ceiling, parse, pretty, substituted, value
from meshcost.job import Job, analyze
from meshcost.symbols import ALPHABET, DEFINITIONS, S, h, n, t

SOME = settings(max_examples=max(settings().max_examples // 4, 10))
LETTERS = [ALPHABET[name] for name in ("h", "L", "T", "t", "c", "n", "b_a", "k")]
numbers = st.dictionaries(
    st.sampled_from(LETTERS), st.integers(1, 50), min_size=len(LETTERS), max_size=len(LETTERS)
)


def grown(inside):
    pairs = st.tuples(inside, inside)
    return st.one_of(
        pairs.map(lambda x: x[0] + x[1]),
        pairs.map(lambda x: x[0] * x[1]),
        st.tuples(inside, st.sampled_from(LETTERS)).map(lambda x: x[0] / x[1]),
        st.tuples(inside, st.integers(2, 9)).map(lambda x: x[0] / x[1]),
        inside.map(ceiling),
        inside.map(floor),
        pairs.map(lambda x: Max(*x)),
        pairs.map(lambda x: Min(*x)),
        st.sampled_from(LETTERS).map(log2_ceiling),
        st.sampled_from(LETTERS).map(lambda x: x**3),
    )


formulas = st.recursive(
    st.one_of(st.sampled_from(LETTERS), st.integers(-5, 99).map(Integer)), grown, max_leaves=8
)


@given(formulas, numbers)
def test_a_value_is_what_sympy_says(formula, values):
    exact = formula.xreplace({symbol: Integer(number) for symbol, number in values.items()})
    assert Rational(value(formula, values)) == exact


@given(formulas, numbers)
def test_what_is_written_reads_back(formula, values):
    back = parse(pretty(formula))
    assert back == formula
    assert value(back, values) == value(formula, values)


@SOME
@given(testing.jobs())
def test_the_formulas_of_jobs_read_back(job: Job):
    for event in analyze(job):
        for form in (event.payload, event.count, event.priced.sent, event.priced.received):
            assert parse(pretty(form)) == form


@given(formulas, numbers)
def test_a_formula_with_numbers_put_in_is_still_that_number(formula, values):
    shown = substituted(formula, values)
    assert not any(
        character.isalpha()
        for character in shown.replace("ceiling", "")
        .replace("floor", "")
        .replace("Max", "")
        .replace("Min", "")
        .replace("log2_", "")
    )


@given(formulas, numbers, st.sampled_from(LETTERS))
def test_elasticity_is_the_measured_slope(formula, values, symbol):
    assume(not formula.has(ceiling, floor, Max, Min, log2_ceiling))
    here = Fraction(value(formula, values))
    assume(here != 0)
    step = Fraction(1, 10**6)
    above, below = ({**values, symbol: values[symbol] * (1 + sign * step)} for sign in (1, -1))
    measured = (Fraction(value(formula, above)) - Fraction(value(formula, below))) / (2 * step * here)
    stated = elasticity(formula, symbol, values)
    assert abs(measured - stated) <= Fraction(1, 1000) * max(1, abs(stated), abs(measured))


def test_elasticities_that_everybody_knows():
    assert elasticity(2 * S * (n - 1) / n, n, {S: 8, n: 8}) == Fraction(1, 7)
    assert elasticity(h / t, t, {h: 8, t: 4}) == -1
    assert elasticity(h, t, {h: 8, t: 4}) == 0
    assert elasticity(ceiling(h / t), h, {h: 8, t: 4}) == 1


def test_what_rounding_makes_constant_does_not_grow():
    """What one element costs over a ring: each of three ranks or more sends it twice, however many there are."""
    one_element = 8 - 4 * floor(1 / n) - 4 * floor(2 / n)
    assert [elasticity(one_element, n, {n: ranks}) for ranks in (3, 4, 64, 16384)] == [0, 0, 0, 0]
    assert elasticity(h * ceiling(1 / n), n, {h: 8, n: 5}) == 0
    for ranks in (1, 2):  # from none to 4 B, and to 8 B
        with pytest.raises(FormulaError, match="jumps at n"):
            elasticity(one_element, n, {n: ranks})


def test_definitions_are_over_the_alphabet_and_hold_in_jobs():
    for symbol, meaning in DEFINITIONS.items():
        assert symbol in ALPHABET.values()
        assert set(free_symbols(meaning)) <= set(ALPHABET.values())


@SOME
@given(testing.jobs())
def test_symbols_mean_what_they_are_defined_as(job: Job):
    for symbol, meaning in DEFINITIONS.items():
        if symbol.name != "d_e" or job.mesh.expert:
            assert value(meaning, job.values) == job.values[symbol], symbol


@given(
    st.text(max_size=60)
    | st.sampled_from(
        [
            "9**9**9**9",
            "h**64**64",
            "(" * 300,
            "h if t else n",
            "1e9",
            "h.real",
            "'h'",
            "[h]",
            "h**-1",
            "1/0",
            "-" * 5000 + "h",
        ]
    )
)
def test_any_text_is_a_formula_or_a_formula_error(text):
    with suppress(FormulaError):
        parse(text)


def test_nothing_is_left_over():
    with pytest.raises(FormulaError, match="t has no value"):
        bind(h / t, {h: 8})
    with pytest.raises(FormulaError, match="not a whole number"):
        bind(h / t, {h: 8, t: 3})
