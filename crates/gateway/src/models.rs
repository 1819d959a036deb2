//! What replicas serve, as their `/v1/models` say it, and the one list that clients get.

use serde::Deserialize;
use serde_json::Value;
use serde_json::json;

/// A model that a replica serves: its name, and what the replica says of it.
#[derive(Clone, PartialEq, Debug)]
pub struct ServedModel {
    pub id: String,
    pub entry: Value,
}

/// Most models of one replica that are looked at.
const MOST: usize = 10_000;

impl ServedModel {
    /// One of which no more is known.
    pub fn named(id: &str) -> ServedModel {
        ServedModel { id: id.to_owned(), entry: json!({"id": id, "object": "model"}) }
    }
}

/// Reads a list of models as OpenAI's API has it; `None` where it is none.
pub fn read(page: &[u8]) -> Option<Vec<ServedModel>> {
    #[derive(Deserialize)]
    struct Page {
        data: Vec<Value>,
    }
    let page: Page = serde_json::from_slice(page).ok()?;
    let named = |entry: Value| Some(ServedModel { id: entry.get("id")?.as_str()?.to_owned(), entry });
    page.data.into_iter().take(MOST).map(named).collect()
}

/// One list of all, each model once, in the order of replicas.
pub fn merged<'a>(each: impl IntoIterator<Item = &'a [ServedModel]>) -> Value {
    let mut all: Vec<&ServedModel> = Vec::new();
    for model in each.into_iter().flatten() {
        if all.iter().all(|known| known.id != model.id) {
            all.push(model);
        }
    }
    json!({"object": "list", "data": all.iter().map(|model| &model.entry).collect::<Vec<_>>()})
}
