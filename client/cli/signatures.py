"""What people are told about the signature of an entry, and about how it came into its project."""

from client.cli.opening import Here
from client.errors import ConfigurationError, FormatError, SignatureError
from client.signing.statements import Promotion, Signature
from client.signing.trust import TrustList
from client.wire import Entry


def signature_rows(here: Here, entry: Entry) -> list[tuple[str, str]]:
    """Return the rows of `show` about signature and promotions, with the verdict of the trusted keys if there are any.

    The verdict is there also where ``NEURON_CACHE_SIGNATURES=off``: people look, jobs need not.
    """
    return [("signature", _signature(here, entry)), *(("promoted", _promotion(value)) for value in entry.promotions)]


def _signature(here: Here, entry: Entry) -> str:
    if entry.signature is None:
        said = "none"
    else:
        try:
            said = f"by key {Signature.from_json(entry.signature).key_id}"
        except SignatureError as error:
            said = str(error)
    if here.settings.trusted_keys is None:
        return said if entry.signature is None else f"{said}, not checked: NEURON_CACHE_TRUSTED_KEYS names no keys"
    try:
        signer = TrustList.load(here.settings.trusted_keys).check(entry)
    except SignatureError as error:
        return f"{said}, not trusted: {error}"
    except ConfigurationError as error:
        return f"{said}, not checked: {error}"
    return f"{said}, trusted as {signer.name}"


def _promotion(value: object) -> str:
    try:
        record = Promotion.from_json(value)
    except (FormatError, SignatureError) as error:
        return f"a record that cannot be read: {error}"
    key = "nobody" if record.signature is None else f"key {record.signature.key_id}"
    return f"from {record.source} to {record.target} by {record.by} at {record.time}, signed by {key}"
