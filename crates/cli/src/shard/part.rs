//! A shard's part of one level, in the form in which it is uploaded for shard 0.
//!
//! A part is a small log in the format of the run folder's log. The reader that recovers a killed run therefore reads it too.

use plimsoll_model::{Attempt, Level, Manifest, Sample, ShardPart};
use plimsoll_store::{code, frame};
use serde_json::Value;

use crate::exit::Stop;

/// One shard's part of a level.
#[derive(Debug)]
pub struct ShardLevel {
    /// Number, clock error, host and progress of the shard.
    pub shard: ShardPart,
    /// The shard's level; `None` if the shard was late and sent nothing.
    pub level: Option<Level>,
    pub attempts: Vec<Attempt>,
    /// Time series of the shard's client.
    pub samples: Vec<Sample>,
}

impl ShardLevel {
    /// Encodes the part, with the manifest's data about this machine.
    pub fn bytes(&self, manifest: &Manifest) -> Vec<u8> {
        let manifest = Manifest {
            shard: Some(self.shard.clone()),
            scenario: Value::Null,
            levels: Vec::new(),
            findings: None,
            ..manifest.clone()
        };
        let json = |value: serde_json::Result<Vec<u8>>| value.unwrap_or_default();
        let mut bytes = frame::MAGIC.to_vec();
        let mut put = |kind, fill: &dyn Fn(&mut Vec<u8>)| frame::append(&mut bytes, kind, fill);
        put(frame::FrameKind::Manifest, &|buf| buf.extend(json(serde_json::to_vec(&manifest))));
        for row in &self.attempts {
            put(frame::FrameKind::Attempt, &|buf| code::put_attempt(buf, row));
        }
        for sample in &self.samples {
            put(frame::FrameKind::Sample, &|buf| code::put_sample(buf, sample));
        }
        if let Some(level) = &self.level {
            put(frame::FrameKind::Level, &|buf| buf.extend(json(serde_json::to_vec(level))));
        }
        bytes
    }

    /// Decodes a part. `name` is used in errors.
    ///
    /// # Errors
    /// The part is damaged, truncated or in another format.
    pub fn read(name: &str, bytes: &[u8]) -> Result<ShardLevel, Stop> {
        let wrong = |what: &str| Stop::invalid(format!("{name}: {what}"));
        let (mut shard, mut level) = (None, None);
        let (mut attempts, mut samples) = (Vec::new(), Vec::new());
        let tail = frame::read(bytes, bytes.len() as u64, |record| {
            match record {
                frame::LogRecord::Manifest(manifest) => shard = manifest.shard,
                frame::LogRecord::Attempt(row) => attempts.push(row),
                frame::LogRecord::Sample(sample) => samples.push(sample),
                frame::LogRecord::Level(read) => level = Some(*read),
                frame::LogRecord::Begun(_) | frame::LogRecord::Span(_) => {}
            }
            Ok::<(), std::io::Error>(())
        });
        let tail = tail.map_err(|e| wrong(&e.to_string()))?;
        if tail.damaged || tail.dropped > 0 || tail.unread > 0 {
            return Err(wrong("a shard's part of a level that does not read back"));
        }
        let shard = shard.ok_or_else(|| wrong("no shard's part of a level"))?;
        Ok(ShardLevel { shard, level, attempts, samples })
    }
}
