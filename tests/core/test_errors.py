"""A problem says where, what and how to mend it."""

from tessera.core.errors import InputErrors, Problem


def test_a_problem_reads_as_one_line_with_file_object_field_value_and_remedy():
    problem = Problem(
        "pod.yaml", "Pod/default/p", "limits[tessera.dev/gpu]", "0", "is not positive", "ask for one"
    )
    assert (
        str(problem) == "pod.yaml: Pod/default/p: limits[tessera.dev/gpu]: is not positive (got '0'); ask for one"
    )


def test_all_problems_of_a_call_are_kept():
    problems = [Problem("f", "", "", "", str(i), "mend it") for i in range(3)]
    assert InputErrors(problems).problems == tuple(problems)
    assert str(InputErrors(problems)).count("\n") == 2
