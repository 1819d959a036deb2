//! Generates synthetic text: common short English words, one per requested token.
//!
//! Each word after a blank is one token in the vocabularies in use. A text of n words therefore has close to n tokens for
//! any of them. A factor corrects the difference, which is measured by the server's `usage`. For the embedded engine a word
//! *is* a token. Random token ids were rejected: they need the model's tokeniser and decode to text that encodes
//! differently. There are 256 words, so that a random byte is a word and sixteen words have 128 bits: no two unrelated
//! blocks are ever equal.

use plimsoll_math::rng::Stream;

/// The words; the index is a random byte.
pub const WORDS: [&str; 256] = [
    "the", "of", "and", "to", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with", "as",
    "his", "they", "be", "at", "one", "have", "this", "from", "or", "had", "by", "hot", "but", "some",
    "what", "there", "we", "can", "out", "other", "were", "all", "your", "when", "up", "use", "word", "how",
    "said", "an", "each", "she", "which", "do", "their", "time", "if", "will", "way", "about", "many",
    "then", "them", "would", "write", "like", "so", "these", "her", "long", "make", "thing", "see", "him",
    "two", "has", "look", "more", "day", "could", "go", "come", "did", "my", "sound", "no", "most", "number",
    "who", "over", "know", "water", "than", "call", "first", "people", "may", "down", "side", "been", "now",
    "find", "any", "new", "work", "part", "take", "get", "place", "made", "live", "where", "after", "back",
    "little", "only", "round", "man", "year", "came", "show", "every", "good", "me", "give", "our", "under",
    "name", "very", "through", "just", "form", "much", "great", "think", "say", "help", "low", "line",
    "before", "turn", "cause", "same", "mean", "move", "right", "boy", "old", "too", "does", "tell", "set",
    "three", "want", "air", "well", "also", "play", "small", "end", "put", "home", "read", "hand", "port",
    "large", "add", "even", "land", "here", "must", "big", "high", "such", "follow", "act", "why", "ask",
    "men", "change", "went", "light", "kind", "off", "need", "house", "try", "us", "again", "animal",
    "point", "mother", "world", "near", "build", "self", "earth", "father", "head", "stand", "own", "page",
    "should", "country", "found", "answer", "school", "grow", "study", "still", "learn", "plant", "cover",
    "food", "sun", "four", "state", "keep", "eye", "never", "last", "let", "thought", "city", "tree",
    "cross", "farm", "hard", "start", "might", "story", "saw", "far", "sea", "draw", "left", "late", "run",
    "while", "press", "close", "night", "real", "life", "few", "north", "open", "seem", "next", "white",
    "begin", "got", "walk", "paper", "group", "always", "music", "those", "both", "mark",
];

/// Appends `count` words of the text named `key` to `out`, each after a blank except at the start of `out`. A shorter text
/// of a key is a prefix of a longer one.
pub(crate) fn write(out: &mut String, key: u64, count: usize) {
    // A word with its blank has 5.1 bytes on average; a buffer that is too small would be copied.
    out.reserve(count * 6 + 8);
    let mut stream = Stream::new(key, "text", 0);
    let mut left = count;
    while left > 0 {
        for byte in stream.next_u64().to_le_bytes().into_iter().take(left) {
            if !out.is_empty() {
                out.push(' ');
            }
            out.push_str(WORDS[usize::from(byte)]);
        }
        left = left.saturating_sub(8);
    }
}
