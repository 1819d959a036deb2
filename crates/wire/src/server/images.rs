//! Images, the server's half, in OpenAI's format. The images are noise of a true size.
//!
//! A denoising step costs a decode step of the engine, and the images of a request follow one another.

use std::borrow::Cow;

use bytes::Bytes;
use plimsoll_model::{Media, Protocol};
use serde::Deserialize;
use serde_json::json;

use super::reply::Reply;
use super::request::{BadRequest, GenerateRequest, GeneratedMedia, Words, bad, parse_json, positive};
use crate::media;

/// Denoising steps of an image if the request sets none: the default of diffusers for FLUX.1.
const DENOISING_STEPS: u32 = 28;
/// Most images of a request, as in OpenAI's API.
const IMAGES_MAX: i64 = 10;
/// Longest side of an image in pixels.
const SIDE_MAX: u32 = 2048;
/// Default side of an image in pixels.
const SIDE: u32 = 1024;

#[derive(Deserialize)]
struct ImagesBody<'a> {
    #[serde(borrow, default)]
    model: Cow<'a, str>,
    #[serde(borrow)]
    prompt: Cow<'a, str>,
    n: Option<i64>,
    #[serde(borrow, default)]
    size: Option<Cow<'a, str>>,
    num_inference_steps: Option<i64>,
}

pub(super) fn parse(body: &[u8]) -> Result<GenerateRequest, BadRequest> {
    let body: ImagesBody<'_> = parse_json(body)?;
    let count = match body.n.unwrap_or(1) {
        n @ 1..=IMAGES_MAX => n as u32,
        _ => return Err(bad("n", format!("n must be between 1 and {IMAGES_MAX}"))),
    };
    let (width, height) = size(body.size.as_deref())?;
    let each = positive("num_inference_steps", body.num_inference_steps)?.unwrap_or(DENOISING_STEPS);
    let mut asked = GenerateRequest {
        endpoint: Protocol::Images,
        max_tokens: Some(each.saturating_mul(count)),
        inputs: 1,
        generated: GeneratedMedia::Images { count, width, height },
        ..GenerateRequest::of_text(body.model.into_owned(), Words::of(&body.prompt))
    };
    (0..count).for_each(|_| asked.media.add(&image(width, height, 0)));
    Ok(asked)
}

/// Returns width and height in pixels.
fn size(text: Option<&str>) -> Result<(u32, u32), BadRequest> {
    let sides = match text {
        None | Some("auto") => Some((SIDE, SIDE)),
        Some(text) => text.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?))),
    };
    let fits = |side: u32| (1..=SIDE_MAX).contains(&side);
    sides
        .filter(|(width, height)| fits(*width) && fits(*height))
        .ok_or_else(|| bad("size", format!("size must be auto or WIDTHxHEIGHT, at most {SIDE_MAX} each")))
}

fn image(width: u32, height: u32, key: u64) -> Media {
    Media::Image { width, height, bits: 2, key }
}

/// Returns the answer with the images as PNG in base64.
pub(super) fn answer((count, width, height): (u32, u32, u32), reply: &Reply<'_>) -> Bytes {
    let encoded = |number: u32| {
        let mut data = String::new();
        media::base64(&image(width, height, reply.first_word.wrapping_add(number.into())), &mut data);
        json!({"b64_json": data})
    };
    let data: Vec<_> = (0..count).map(encoded).collect();
    Bytes::from(json!({"created": reply.created_s, "data": data}).to_string())
}
