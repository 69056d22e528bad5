"""Cases in which every two values of two parameters meet, in place of each combination of all."""

from itertools import combinations, product


def pairs(*parameters):
    """Few rows, one value of each parameter in each, so that any two values of different parameters share a row.

    A fault that needs two certain values is found as by the whole product; one that needs three may not be. The rows
    are the same in every process: of those that add most new pairs, the first in the order of the product.

    Args:
        parameters: the values of each, three parameters or more; with two, nothing is less than their product.
    """
    assert len(parameters) > 2
    met = {
        row: {(first, second, row[first], row[second]) for first, second in combinations(range(len(row)), 2)}
        for row in product(*(range(len(values)) for values in parameters))
    }
    missing = set().union(*met.values())
    rows = []
    while missing:
        row = max(met, key=lambda row: len(met[row] & missing))
        missing -= met.pop(row)
        rows.append(tuple(values[index] for values, index in zip(parameters, row, strict=True)))
    return rows
