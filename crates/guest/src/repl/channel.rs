//! The words between the guest and a kernel. Nothing that a kernel says is believed: user code
//! runs in the same process and can write here too.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_proto::Rich;
use std::collections::BTreeMap;

/// Most bytes of one rich result.
const RICH_LIMIT: usize = 16 << 20;

/// What a kernel says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// It is ready; the version of its Python.
    Hello(String),
    /// The call runs: an interrupt from now on reaches it.
    Started(u32),
    Rich(Rich),
    Done(Done),
}

/// The end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) call: u32,
    pub(crate) status: i32,
    /// Whether an interrupt ended it.
    pub(crate) interrupted: bool,
    /// Whether that was the kernel's limit on processor time.
    pub(crate) out_of_cpu: bool,
    pub(crate) cpu_us: u64,
}

/// The kernel said something that it never says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

/// Takes frames out of the bytes that have arrived.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buffer: Vec<u8>,
    start: usize,
}

impl Frames {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }

    /// The next whole frame. A length is checked as soon as it is there, so that the buffer
    /// stays within one frame and one read.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Broken> {
        let rest = &self.buffer[self.start..];
        let Some((head, body)) = rest.split_first_chunk::<5>() else {
            return Ok(None);
        };
        let [a, b, c, d, kind] = *head;
        let length = (u32::from_le_bytes([a, b, c, d]) as usize)
            .checked_sub(1)
            .ok_or(Broken)?;
        let good = match kind {
            b'H' => length <= 64,
            b'S' => length == 4,
            b'V' => length <= RICH_LIMIT,
            b'D' => length == 17,
            _ => false,
        };
        if !good {
            return Err(Broken);
        }
        let Some(body) = body.get(..length) else {
            return Ok(None);
        };
        let frame = match kind {
            b'H' => Frame::Hello(String::from_utf8_lossy(body).into_owned()),
            b'S' => Frame::Started(number(body)?),
            b'V' => Frame::Rich(rich(body).ok_or(Broken)?),
            _ => done(body).ok_or(Broken)?,
        };
        self.start += length + 5;
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        Ok(Some(frame))
    }
}

fn number(body: &[u8]) -> Result<u32, Broken> {
    body.try_into().map(u32::from_le_bytes).map_err(|_| Broken)
}

fn done(body: &[u8]) -> Option<Frame> {
    let (call, rest) = body.split_first_chunk()?;
    let (status, rest) = rest.split_first_chunk()?;
    let (flags, cpu) = rest.split_first()?;
    Some(Frame::Done(Done {
        call: u32::from_le_bytes(*call),
        status: i32::from_le_bytes(*status),
        interrupted: *flags != 0,
        out_of_cpu: flags & 2 != 0,
        cpu_us: u64::from_le_bytes(cpu.try_into().ok()?),
    }))
}

fn rich(body: &[u8]) -> Option<Rich> {
    let (kind, mut rest) = body.split_first()?;
    let kind = match kind {
        0 => "value",
        1 => "display",
        _ => return None,
    };
    let mut data = BTreeMap::new();
    while !rest.is_empty() {
        let (length, more) = rest.split_first()?;
        let (mime, more) = more.split_at_checked(usize::from(*length))?;
        let (length, more) = more.split_first_chunk()?;
        let (bytes, more) = more.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let mime = std::str::from_utf8(mime).ok()?;
        if mime.is_empty() || !mime.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
            return None;
        }
        let text = if is_text(mime) {
            String::from_utf8_lossy(bytes).into_owned()
        } else {
            STANDARD.encode(bytes)
        };
        data.insert(mime.to_owned(), text);
        rest = more;
    }
    Some(Rich {
        kind: kind.to_owned(),
        data,
    })
}

/// Media types that travel as text.
fn is_text(mime: &str) -> bool {
    let mime = mime.split(';').next().unwrap_or(mime).trim_end();
    mime.starts_with("text/")
        || mime.ends_with("+json")
        || mime.ends_with("+xml")
        || matches!(
            mime,
            "application/json" | "application/javascript" | "application/xml"
        )
}

/// The frame that runs a cell.
pub(crate) fn run(call: u32, code: &str) -> Vec<u8> {
    let mut frame = Vec::with_capacity(code.len() + 9);
    frame.extend_from_slice(&(code.len() as u32 + 5).to_le_bytes());
    frame.push(b'R');
    frame.extend_from_slice(&call.to_le_bytes());
    frame.extend_from_slice(code.as_bytes());
    frame
}

/// The frame that tells a kernel where new tools are.
pub(crate) fn adopt(folder: &str) -> Vec<u8> {
    let mut frame = (folder.len() as u32 + 1).to_le_bytes().to_vec();
    frame.push(b'T');
    frame.extend_from_slice(folder.as_bytes());
    frame
}

/// The frame that ends a kernel in good order.
pub(crate) const EXIT: [u8; 5] = [1, 0, 0, 0, b'X'];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = (body.len() as u32 + 1).to_le_bytes().to_vec();
        bytes.push(kind);
        bytes.extend_from_slice(body);
        bytes
    }

    fn all(bytes: &[u8], step: usize) -> Result<Vec<Frame>, Broken> {
        let mut frames = Frames::default();
        let mut found = Vec::new();
        for chunk in bytes.chunks(step.max(1)) {
            frames.push(chunk);
            while let Some(frame) = frames.next()? {
                found.push(frame);
            }
            assert!(frames.buffer.len() <= RICH_LIMIT + 5 + chunk.len());
        }
        Ok(found)
    }

    #[test]
    fn frames_come_in_any_pieces() {
        let mut done = vec![7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1];
        done.extend_from_slice(&42u64.to_le_bytes());
        let mut rich = vec![1, 9];
        rich.extend_from_slice(b"image/png\x02\0\0\0\xff\xfe\x09text/html\x01\0\0\0x");
        let bytes = [
            frame(b'H', b"3.11.2"),
            frame(b'S', &[7, 0, 0, 0]),
            frame(b'V', &rich),
            frame(b'D', &done),
        ]
        .concat();
        for step in 1..bytes.len() {
            let found = all(&bytes, step).unwrap();
            assert_eq!(found.len(), 4);
            assert_eq!(found[0], Frame::Hello("3.11.2".to_owned()));
            assert_eq!(found[1], Frame::Started(7));
            let Frame::Rich(rich) = &found[2] else {
                panic!("{found:?}")
            };
            assert_eq!(rich.kind, "display");
            assert_eq!(rich.data["image/png"], "//4=");
            assert_eq!(rich.data["text/html"], "x");
            let done = Done {
                call: 7,
                status: -1,
                interrupted: true,
                out_of_cpu: false,
                cpu_us: 42,
            };
            assert_eq!(found[3], Frame::Done(done));
        }
    }

    #[test]
    fn nonsense_is_broken_at_once() {
        for bytes in [
            &[0, 0, 0, 0, b'S'][..],
            &[0xff, 0xff, 0xff, 0xff, b'V'],
            &[1, 0, 0, 0, b'R'],
            &[18, 0, 0, 0, b'S'],
            b"hello, world",
        ] {
            assert_eq!(all(bytes, bytes.len()), Err(Broken), "{bytes:?}");
        }
        assert_eq!(all(&frame(b'V', &[2]), 9), Err(Broken));
        assert_eq!(all(&frame(b'V', &[0, 200, 1]), 9), Err(Broken));
    }

    proptest! {
        #[test]
        fn anything_is_frames_or_broken(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            kind in prop_oneof![Just(b'H'), Just(b'S'), Just(b'V'), Just(b'D'), any::<u8>()],
            step in 1usize..40,
        ) {
            let _ = all(&bytes, step);
            let whole = frame(kind, &bytes);
            let once = all(&whole, whole.len());
            prop_assert_eq!(all(&whole, step), once);
        }
    }
}
