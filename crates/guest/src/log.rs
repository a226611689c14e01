//! The output of one stream: its first bytes, its latest bytes, and how many there were.

use rustix::fs::MemfdFlags;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Keeps the first `limit` bytes in memory, and the latest `ring` of those after them in a file
/// of that size, made when the first byte needs it.
#[derive(Debug)]
pub(crate) struct Log {
    head: Vec<u8>,
    limit: usize,
    ring: Option<File>,
    ring_size: u64,
    total: u64,
    /// Where the ring is no longer whole: set when it could not be made or written.
    broken: bool,
}

/// What a reader gets at a position.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Bytes from the position on; empty at the end of what has been written.
    Chunk(Vec<u8>),
    /// The bytes before `to` are no longer kept: go on there.
    Skipped { to: u64 },
}

impl Log {
    pub(crate) fn new(limit: u64, ring_size: u64) -> Self {
        Self {
            head: Vec::new(),
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            ring: None,
            ring_size,
            total: 0,
            broken: false,
        }
    }

    /// Starts again with nothing.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.limit(), self.ring_size);
    }

    /// Bytes written in all.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The first bytes, at most the limit.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit as u64
    }

    /// Bytes of memory that the log takes.
    pub(crate) fn kept(&self) -> u64 {
        let ring = self
            .total
            .saturating_sub(self.head.len() as u64)
            .min(self.ring_size);
        self.head.capacity() as u64 + if self.ring.is_some() { ring } else { 0 }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let room = (self.limit - self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        self.total += first.len() as u64;
        if !rest.is_empty() {
            self.push_ring(rest);
        }
    }

    fn push_ring(&mut self, bytes: &[u8]) {
        let start = self.total;
        self.total += bytes.len() as u64;
        if self.ring.is_none() && !self.broken {
            self.ring = rustix::fs::memfd_create(c"ringfence-output", MemfdFlags::CLOEXEC)
                .ok()
                .map(File::from);
            self.broken = self.ring.is_none();
        }
        let Some(ring) = &self.ring else { return };
        // Of what is longer than the ring only the end stays.
        let skip = (bytes.len() as u64).saturating_sub(self.ring_size);
        let mut at = start + skip;
        let mut rest = &bytes[skip as usize..];
        while !rest.is_empty() {
            let place = (at - self.head.len() as u64) % self.ring_size;
            let count = rest.len().min((self.ring_size - place) as usize);
            if ring.write_all_at(&rest[..count], place).is_err() {
                self.ring = None;
                self.broken = true;
                return;
            }
            at += count as u64;
            rest = &rest[count..];
        }
    }

    /// At most `max` bytes from position `from` on.
    pub(crate) fn read(&self, from: u64, max: usize) -> Read {
        let head = self.head.len() as u64;
        if from >= self.total {
            return Read::Chunk(Vec::new());
        }
        if from < head {
            let from = from as usize;
            let to = from.saturating_add(max).min(self.head.len());
            return Read::Chunk(self.head[from..to].to_vec());
        }
        let Some(ring) = &self.ring else {
            return Read::Skipped { to: self.total };
        };
        let oldest = head.max(self.total.saturating_sub(self.ring_size));
        if from < oldest {
            return Read::Skipped { to: oldest };
        }
        let place = (from - head) % self.ring_size;
        let count = (self.total - from)
            .min(max as u64)
            .min(self.ring_size - place);
        let mut bytes = vec![0; count as usize];
        match ring.read_exact_at(&mut bytes, place) {
            Ok(()) => Read::Chunk(bytes),
            Err(_) => Read::Skipped { to: self.total },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Everything that can be read from `from` on, with the gaps as `None`.
    fn read_all(log: &Log, from: u64, max: usize) -> Vec<Option<u8>> {
        let mut all = Vec::new();
        let mut at = from;
        loop {
            match log.read(at, max) {
                Read::Chunk(bytes) if bytes.is_empty() => return all,
                Read::Chunk(bytes) => {
                    at += bytes.len() as u64;
                    all.extend(bytes.into_iter().map(Some));
                }
                Read::Skipped { to } => {
                    assert!(to > at);
                    all.extend((at..to).map(|_| None));
                    at = to;
                }
            }
        }
    }

    proptest! {
        #[test]
        fn equals_a_model(
            limit in 0u64..40,
            ring in 1u64..40,
            writes in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..12),
            from in 0u64..400,
            max in 1usize..50,
        ) {
            let mut log = Log::new(limit, ring);
            let mut model = Vec::new();
            for write in &writes {
                log.push(write);
                model.extend_from_slice(write);
                let total = model.len() as u64;
                prop_assert_eq!(log.total(), total);
                let kept = |at: u64| at < limit || at >= total.saturating_sub(ring).max(limit);
                let expected: Vec<Option<u8>> = (from..total)
                    .map(|at| kept(at).then(|| model[at as usize]))
                    .collect();
                prop_assert_eq!(read_all(&log, from, max), expected);
            }
        }
    }

    #[test]
    fn no_file_until_the_head_is_full() {
        let mut log = Log::new(4, 4);
        log.push(b"1234");
        assert!(log.ring.is_none());
        log.push(b"5");
        assert!(log.ring.is_some());
    }
}
