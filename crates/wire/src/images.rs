//! Images (`/v1/images/generations`), the client's half: a prompt, and a list of images as base64 or as URLs.
//!
//! An image counts if it contains data or a URL. Their number is checked ([`plimsoll_model::Broken::WrongCount`]), because an
//! answer that lacks some of them is complete and still wrong.

use plimsoll_model::Media;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::chunk::{RawUsage, Text, is_error, loose};
use crate::fault::Fault;
use crate::media;
use crate::tally::Tally;

#[derive(Deserialize, Default)]
#[serde(default)]
struct ImagesAnswer<'a> {
    #[serde(borrow)]
    data: Option<Vec<ImageItem<'a>>>,
    #[serde(deserialize_with = "loose")]
    usage: Option<RawUsage>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ImageItem<'a> {
    #[serde(borrow)]
    b64_json: Text<'a>,
    #[serde(borrow)]
    url: Text<'a>,
}

pub(crate) fn whole(text: &str, tally: &mut Tally) -> Result<(), serde_json::Error> {
    let answer: ImagesAnswer<'_> = serde_json::from_str(text)?;
    let complains = answer.detail.is_some() || answer.message.is_some();
    if is_error(answer.error) || (answer.data.is_none() && complains) {
        tally.error = Some(Fault::from_json(text));
        return Ok(());
    }
    for item in answer.data.iter().flatten() {
        match media::read_head(item.b64_json.get()) {
            Some(image @ Media::Image { .. }) => tally.images.add(&image),
            _ if item.b64_json.is_empty() && item.url.is_empty() => {}
            _ => tally.images.images += 1,
        }
    }
    tally.results = Some(tally.images.images);
    tally.generated = tally.images.images > 0;
    let usage = answer.usage.as_ref().map(RawUsage::usage);
    if let Some(usage) = usage.filter(|usage| usage.prompt.or(usage.output).is_some()) {
        tally.only_usage(usage);
    }
    Ok(())
}
