import os


def test_it_is_a_rank():
    assert os.environ["RANK"] in "01"
