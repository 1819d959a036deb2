//! Writes a message with media in each protocol's parts: pictures and audio first, because questions refer to them, then the text.

use plimsoll_model::{Media, Message, Protocol};

use crate::media;
use crate::template::quoted;

/// Appends the value of `content`, and under Ollama the next field with the pictures.
pub(crate) fn content(message: &Message, protocol: Protocol, out: &mut String) {
    if protocol.sends_lines() {
        quoted(&message.content, out);
        out.push_str(",\"images\":[");
        listed(&message.media, out, |media, out| {
            out.push('"');
            media::base64(media, out);
            out.push('"');
        });
        return out.push(']');
    }
    out.push('[');
    listed(&message.media, out, |media, out| part(media, protocol, out));
    let text = if protocol == Protocol::Responses { "input_text" } else { "text" };
    out.push_str(",{\"type\":\"");
    out.push_str(text);
    out.push_str("\",\"text\":");
    quoted(&message.content, out);
    out.push_str("}]");
}

fn listed(all: &[Media], out: &mut String, one: impl Fn(&Media, &mut String)) {
    for (place, media) in all.iter().enumerate() {
        if place > 0 {
            out.push(',');
        }
        one(media, out);
    }
}

fn part(media: &Media, protocol: Protocol, out: &mut String) {
    let (before, after) = match (media, protocol) {
        (Media::Audio { .. }, _) => {
            out.push_str("{\"type\":\"input_audio\",\"input_audio\":{\"format\":\"wav\",\"data\":\"");
            media::base64(media, out);
            return out.push_str("\"}}");
        }
        (Media::Image { .. }, Protocol::Messages) => {
            out.push_str("{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"media_type\":\"image/png\",\"data\":\"");
            media::base64(media, out);
            return out.push_str("\"}}");
        }
        (Media::Image { .. }, Protocol::Responses) => {
            ("{\"type\":\"input_image\",\"detail\":\"auto\",\"image_url\":\"", "\"}")
        }
        (Media::Image { .. }, _) => ("{\"type\":\"image_url\",\"image_url\":{\"url\":\"", "\"}}"),
    };
    out.push_str(before);
    media::data_url(media, out);
    out.push_str(after);
}
