"""Keys as a function: equal documents have one key, different ones never share it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from client.key import CompilerIdentity, Ir, KeyDocument, key_of, keyed_flags
from client.names import Kind

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
documents = st.builds(
    KeyDocument,
    kind=st.sampled_from(Kind),
    ir=st.builds(Ir, words, words, words, words),
    compiler=st.builds(CompilerIdentity, words, words),
    target=words,
    logical_cores=st.integers(1, 8),
    flags=st.lists(words, max_size=4).map(tuple),
    kernels=st.lists(words, max_size=3).map(tuple),
    extra=st.dictionaries(words, words, max_size=3),
)


@given(documents, documents)
def test_two_documents_share_a_key_only_if_they_are_equal(one, other):
    assert (one.key == other.key) == (one.to_json() == other.to_json())


@given(documents, st.randoms())
def test_the_order_in_which_a_document_was_written_does_not_matter(document, random):
    def shuffled(value):
        if isinstance(value, dict):
            items = [(name, shuffled(item)) for name, item in value.items()]
            random.shuffle(items)
            return dict(items)
        return value

    assert key_of(shuffled(document.to_json())) == document.key


@given(documents)
def test_a_stored_document_still_has_its_key(document):
    assert key_of(json.loads(json.dumps(document.to_json()))) == document.key


@given(st.lists(st.sampled_from(["-O2", "--lnc", "2", "--output", "-o", "a.neff", "--verbose=1", "--logfile=x"])))
def test_leaving_out_unkeyed_words_keeps_the_others_in_order(flags):
    kept = keyed_flags(flags)
    assert keyed_flags(kept) == kept
    rest = iter(flags)
    assert all(word in rest for word in kept)
