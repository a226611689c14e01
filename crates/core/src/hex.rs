//! Bytes as hexadecimal digits.

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

/// So many random bytes.
pub fn random_hex<const BYTES: usize>() -> Result<String, Failure> {
    let mut bytes = [0u8; BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)
            .map_err(|e| Failure::io("cannot draw a random id", &e.into()))?;
    }
    Ok(hex(bytes))
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
