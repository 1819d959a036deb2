//! Parses the answer of an inference: outputs, or an error under a success status.

use serde::Deserialize;
use serde::de::{Error as _, IgnoredAny};

use crate::fault::Fault;
use crate::tally::Tally;

/// Parses the JSON part of an answer into the tally. `raw`: number of bytes after it, which must equal the size of the outputs.
pub(crate) fn read(text: &str, raw: usize, tally: &mut Tally) -> Result<(), serde_json::Error> {
    #[derive(Deserialize)]
    struct Answer {
        error: Option<IgnoredAny>,
        outputs: Option<Vec<Output>>,
    }
    #[derive(Deserialize)]
    struct Output {
        #[serde(default)]
        shape: Vec<u64>,
        parameters: Option<Parameters>,
    }
    #[derive(Deserialize)]
    struct Parameters {
        binary_data_size: Option<u64>,
    }
    let answer: Answer = serde_json::from_str(text)?;
    if answer.error.is_some() {
        tally.error = Some(Fault::from_json(text));
        return Ok(());
    }
    let outputs = answer.outputs.ok_or_else(|| serde_json::Error::custom("it has no outputs"))?;
    let reported = outputs.iter().filter_map(|output| output.parameters.as_ref()?.binary_data_size);
    let reported = reported.fold(0, u64::saturating_add);
    if reported != raw as u64 {
        return Err(serde_json::Error::custom(format!(
            "{raw} raw bytes follow; binary_data_size reports {reported}"
        )));
    }
    // An output with no elements is empty; an output without a shape counts as having content.
    tally.generated = outputs.iter().any(|output| !output.shape.contains(&0));
    tally.keep(text);
    Ok(())
}
