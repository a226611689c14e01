//! Bytes as hexadecimal digits, and random ones.

use ringfence_proto::Failure;

/// Two lower-case digits for each byte.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bytes = bytes.as_ref();
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)].into());
        text.push(DIGITS[usize::from(byte & 15)].into());
    }
    text
}

/// Bytes that nobody can guess, from the kernel.
pub fn random<const BYTES: usize>() -> Result<[u8; BYTES], Failure> {
    let mut bytes = [0; BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        let draw = || rustix::rand::getrandom(&mut bytes[filled..], flags);
        filled += rustix::io::retry_on_intr(draw)
            .map_err(|e| Failure::io("cannot get random bytes", &e.into()))?;
    }
    Ok(bytes)
}

/// So many of them as digits.
pub fn random_hex<const BYTES: usize>() -> Result<String, Failure> {
    random::<BYTES>().map(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_two_digits_each() {
        assert_eq!(hex([]), "");
        assert_eq!(hex([0x00, 0x0f, 0xa0, 0xff]), "000fa0ff");
        assert_eq!(random_hex::<3>().unwrap().len(), 6);
    }
}
