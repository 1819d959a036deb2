//! Models of the replicas, as listed by their `/v1/models`, and the merged list for clients.

use serde::Deserialize;
use serde_json::Value;
use serde_json::json;

/// A model that a replica serves.
#[derive(Clone, PartialEq, Debug)]
pub struct ServedModel {
    pub id: String,
    pub entry: Value,
}

/// Limit on the number of models of a replica.
const MOST: usize = 10_000;

impl ServedModel {
    /// Returns a model with a minimal entry.
    pub fn named(id: &str) -> ServedModel {
        ServedModel { id: id.to_owned(), entry: json!({"id": id, "object": "model"}) }
    }
}

/// Parses a model list of OpenAI's API; returns `None` if the page is not a list.
pub fn read(page: &[u8]) -> Option<Vec<ServedModel>> {
    #[derive(Deserialize)]
    struct Page {
        data: Vec<Value>,
    }
    let page: Page = serde_json::from_slice(page).ok()?;
    let named = |entry: Value| Some(ServedModel { id: entry.get("id")?.as_str()?.to_owned(), entry });
    page.data.into_iter().take(MOST).map(named).collect()
}

/// Returns the merged list with each model once, in the order of the replicas.
pub fn merged<'a>(each: impl IntoIterator<Item = &'a [ServedModel]>) -> Value {
    let mut all: Vec<&ServedModel> = Vec::new();
    for model in each.into_iter().flatten() {
        if all.iter().all(|known| known.id != model.id) {
            all.push(model);
        }
    }
    json!({"object": "list", "data": all.iter().map(|model| &model.entry).collect::<Vec<_>>()})
}
