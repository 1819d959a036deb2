//! Draws the images and audio of requests: their number and size.
//!
//! They are drawn under a separate key per request and not from its stream of lengths. A schedule is therefore equal with
//! and without them.

use plimsoll_math::rng::Stream;
use plimsoll_model::{Media, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SpecError;
use crate::material::ParsedFiles;
use crate::sizes::{Pause, Size};

/// Most images or audio clips of one message.
const COUNT_MAX: u32 = 64;

/// Longest side of an image in pixels; larger draws are cut.
const SIDE_MAX: u32 = 8192;

/// Longest audio clip; longer draws are cut.
const LENGTH_MAX: Span = Span::from_secs(1800);

/// Images in every user message: PNG of noise, whose byte size follows from the pixels.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ImageSpec {
    /// Number of images per message; default 1.
    pub count: Size,
    /// Width of the image in pixels; default 1024.
    pub width: Size,
    /// Height of the image in pixels; default 768.
    pub height: Size,
    /// Bits per pixel: 1, 2, 4 or 8 (grey) or 24 (colour); default 2. With 2, an image has about as many bytes as a JPEG
    /// photograph.
    pub bits: u8,
}

impl Default for ImageSpec {
    fn default() -> ImageSpec {
        ImageSpec { count: Size::Fixed(1), width: Size::Fixed(1024), height: Size::Fixed(768), bits: 2 }
    }
}

impl ImageSpec {
    /// Returns the distributions with their names.
    pub(crate) fn laws(&self) -> [(&'static str, &Size); 3] {
        [("count", &self.count), ("width", &self.width), ("height", &self.height)]
    }

    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        if ![1, 2, 4, 8, 24].contains(&self.bits) {
            return Err(SpecError::value("bits", self.bits, "1, 2, 4 or 8 bits of grey, or 24 of colour"));
        }
        for (name, law) in self.laws() {
            let most = if name == "count" { COUNT_MAX } else { SIDE_MAX };
            within(name, law, most)?;
        }
        Ok(())
    }

    /// Draws the images of a message.
    pub(crate) fn draw(&self, stream: &mut Stream, material: &ParsedFiles) -> Vec<Media> {
        let mut of = |law: &Size, most: u32| law.draw(stream, material).unwrap_or(1).min(most);
        let count = of(&self.count, COUNT_MAX);
        let mut sizes: Vec<(u32, u32)> = Vec::new();
        for _ in 0..count {
            sizes.push((of(&self.width, SIDE_MAX).max(1), of(&self.height, SIDE_MAX).max(1)));
        }
        let image = |(width, height)| Media::Image { width, height, bits: self.bits, key: stream.next_u64() };
        sizes.into_iter().map(image).collect()
    }
}

/// Audio clips in every user message: WAV of noise, 16 bits, one channel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AudioSpec {
    /// Number of images per message; default 1.
    pub count: Size,
    /// Duration of each clip; default 5s.
    pub length: Pause,
    /// Number of samples per second; default 16000.
    pub rate: u32,
}

impl Default for AudioSpec {
    fn default() -> AudioSpec {
        AudioSpec { count: Size::Fixed(1), length: Pause::Fixed(Span::from_secs(5)), rate: 16_000 }
    }
}

impl AudioSpec {
    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        if !(8_000..=48_000).contains(&self.rate) {
            return Err(SpecError::value("rate", self.rate, "8000 to 48000 samples per second"));
        }
        within("count", &self.count, COUNT_MAX)
    }

    /// Draws the audio clips of a message.
    pub(crate) fn draw(&self, stream: &mut Stream, material: &ParsedFiles) -> Vec<Media> {
        let count = self.count.draw(stream, material).unwrap_or(1).min(COUNT_MAX);
        let mut sound = || {
            let length = self.length.draw(stream).clamp(Span::ZERO, LENGTH_MAX);
            let samples = (length.as_secs_f64() * f64::from(self.rate)).round() as u32;
            Media::Audio { samples: samples.max(1), rate: self.rate, key: stream.next_u64() }
        };
        (0..count).map(|_| sound()).collect()
    }
}

fn within(name: &str, law: &Size, most: u32) -> Result<(), SpecError> {
    match law {
        Size::Fixed(n) | Size::Uniform(_, n) if *n > most => {
            Err(SpecError::value(name, n, &format!("at most {most}")))
        }
        Size::Fixed(0) if name != "count" => Err(SpecError::value(name, 0, "at least 1 pixel")),
        _ => Ok(()),
    }
}
