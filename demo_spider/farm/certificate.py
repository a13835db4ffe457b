"""A self-signed certificate, made once per process."""

from __future__ import annotations

import datetime
import functools
import ipaddress
import ssl
import string
import tempfile

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@functools.cache
def _pem() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "farm.test")])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.DNSName("shop.test")]
    # A wildcard straight under a top-level name is refused by TLS clients.
    names += [x509.DNSName(f"{letter}.test") for letter in string.ascii_lowercase]
    names += [x509.IPAddress(ipaddress.ip_address(host)) for host in ("127.0.0.1", "::1")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=7))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def certificate_pem() -> str:
    """Return the certificate that every TLS site of this process shows; it is its own CA."""
    return _pem()[0].decode("ascii")


def private_key_pem() -> str:
    """Return the key of :func:`certificate_pem`, for servers that are other processes."""
    return _pem()[1].decode("ascii")


@functools.cache
def server_context() -> ssl.SSLContext:
    """Return the TLS context that sites serve with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # load_cert_chain reads files only; a private temporary one, gone at once.
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(_pem()))
        file.flush()
        context.load_cert_chain(file.name)
    return context
