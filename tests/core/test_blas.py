"""BLAS on one thread within a block, and as before after it, whatever the order in which threads leave."""

import threading

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import ThreadpoolController, threadpool_limits

from gbplearn.core.blas import one_blas_thread

assert scipy.linalg  # which loads a library of its own


def threads() -> set[int]:
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


def test_one_thread_within_a_block_and_as_many_as_before_after_it():
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with one_blas_thread():
            assert threads() == {1}
            with one_blas_thread():
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == before


def test_after_an_error():
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with pytest.raises(np.linalg.LinAlgError), one_blas_thread():
            np.linalg.inv(np.zeros((2, 2)))
        assert threads() == before


def test_threads_that_leave_in_another_order():
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()
    found = {}

    def first():
        with one_blas_thread():
            first_in.set()
            assert second_in.wait(10)
        first_out.set()

    def second():
        assert first_in.wait(10)
        with one_blas_thread():
            second_in.set()
            assert first_out.wait(10)
            found["within"] = threads()

    before = threads()
    both = [threading.Thread(target=f) for f in (first, second)]
    for t in both:
        t.start()
    for t in both:
        t.join()
    assert found["within"] == {1}
    assert threads() == before
