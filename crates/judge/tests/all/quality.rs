//! Scores, positions of first differences and their summary, on cases calculated by hand.

use plimsoll_judge::quality::score::{ScoreRule, choice, last_number};
use plimsoll_judge::quality::tokens::{alike, first_divergence, tokens};
use plimsoll_judge::quality::{
    ItemSpec, Quality, QualityTarget, Rounds, ScoreSpec, ScoreVerdict, TargetAnswers, judge,
};
use serde_json::json;

fn rule(spec: serde_json::Value) -> ScoreRule {
    let spec: ScoreSpec = serde_json::from_value(spec).expect("a score");
    ScoreRule::new(&spec).expect("sound")
}

#[test]
fn tokens_are_words_and_signs() {
    assert_eq!(tokens("It's 3.5 km — naïve."), ["It", "'", "s", "3", ".", "5", "km", "—", "naïve", "."]);
    assert!(tokens(" \n").is_empty());
}

#[test]
fn answers_part_where_their_tokens_do() {
    let cut = |a: &'static str, b: &'static str| (tokens(a), tokens(b));
    for (a, b, parts, same) in [
        ("a b c d", "a b c d", None, 1.0),
        ("a b  c\nd", "a b c d", None, 1.0),
        ("a b c d", "a b x d", Some(2), 0.75),
        ("a b", "a b c d", Some(2), 0.5),
        ("", "a", Some(0), 0.0),
        ("", "", None, 1.0),
    ] {
        let (a, b) = cut(a, b);
        assert_eq!(first_divergence(&a, &b), parts, "{a:?} {b:?}");
        assert_eq!(alike(&a, &b), same, "{a:?} {b:?}");
    }
}

#[test]
fn the_last_number_is_taken() {
    for (text, number) in [
        ("So 3 + 4 = 7.", Some(7.0)),
        ("#### 1,234.50", Some(1234.5)),
        ("it fell to -12 degrees", Some(-12.0)),
        ("x = −0.5", Some(-0.5)),
        ("pages 3-5", Some(5.0)),
        ("about 1.5e-3", Some(0.0015)),
        ("2E6 tokens", Some(2e6)),
        ("none", None),
        ("(42)", Some(42.0)),
    ] {
        assert_eq!(last_number(text), number, "{text}");
    }
    assert!(rule(json!({"kind": "numeric", "answer": 0.2, "tolerance": 0.1})).is_right("0.3"));
    assert!(!rule(json!({"kind": "numeric", "answer": 0.2, "tolerance": 0.1})).is_right("0.31"));
    assert!(rule(json!({"kind": "numeric", "answer": -200, "relative": 0.01})).is_right("about -198"));
    assert!(!rule(json!({"kind": "numeric", "answer": 7})).is_right("seven"));
}

#[test]
fn the_choice_is_found_in_how_models_word_it() {
    let choices = ["A", "B", "C", "D"].map(str::to_owned);
    for (text, found) in [
        ("B", Some("B")),
        ("(C) because of the wind", Some("C")),
        ("B) is right, not A", Some("B")),
        ("The answer is D.", Some("D")),
        ("Answer A looks good, but the final answer: C", Some("C")),
        ("A dog barks, so D", None),
        ("I think it must be D", Some("D")),
        ("either A or B", None),
        ("no idea", None),
    ] {
        assert_eq!(choice(text, &choices), found, "{text}");
    }
    let spec = json!({"kind": "choice", "answer": "yes", "choices": ["yes", "no"]});
    assert!(rule(spec.clone()).is_right("Answer: yes") && !rule(spec).is_right("no"));
}

#[test]
fn texts_and_patterns() {
    let exact = rule(json!({"kind": "exact", "answer": "New  York"}));
    assert!(exact.is_right(" New York\n") && !exact.is_right("new york") && !exact.is_right("New York."));
    let regex = rule(json!({"kind": "regex", "pattern": "(?i)\\bparis\\b"}));
    assert!(regex.is_right("It is PARIS.") && !regex.is_right("parish"));
    for wrong in [
        json!({"kind": "regex", "pattern": "("}),
        json!({"kind": "choice", "answer": "E"}),
        json!({"kind": "numeric", "answer": 1, "tolerance": -1}),
    ] {
        let spec: ScoreSpec = serde_json::from_value(wrong).expect("a score");
        assert!(ScoreRule::new(&spec).is_err());
    }
}

/// Evaluates these rounds; every item is right if its answer is `yes`.
fn judged(a: &[Rounds], b: &[Rounds], margin: f64) -> Quality {
    judged_with((a, &[]), (b, &[]), margin)
}

/// Evaluates these rounds, of which the marked answers were cut.
fn judged_with((a, cut_a): (&[Rounds], &[bool]), (b, cut_b): (&[Rounds], &[bool]), margin: f64) -> Quality {
    let item: ItemSpec = serde_json::from_value(json!({"prompt": "?"})).expect("an item");
    let yes = rule(json!({"kind": "exact", "answer": "yes"}));
    let items: Vec<_> = (0..a.len()).map(|i| (i as u64 + 1, item.clone(), Some(yes.clone()))).collect();
    let asked = || QualityTarget { url: String::new(), model: None, unanswered: 0, why: None, cut: 0 };
    let said = |rounds: &[Rounds], cut: &[bool]| TargetAnswers { rounds: rounds.to_vec(), cut: cut.to_vec() };
    judge((String::new(), [asked(), asked()]), &items, (&said(a, cut_a), &said(b, cut_b)), margin)
}

fn said(texts: &[&str]) -> Vec<Rounds> {
    texts.iter().map(|text| vec![Some((*text).to_owned())]).collect()
}

#[test]
fn twenty_items_by_hand() {
    // A is right on 15, B on 11: 6 items only A has right, 2 only B.
    let a: Vec<&str> = (0..20).map(|i| if i < 15 { "yes" } else { "no" }).collect();
    let b: Vec<&str> = (0..20).map(|i| if (6..17).contains(&i) { "yes" } else { "no" }).collect();
    let found = judged(&said(&a), &said(&b), 0.02);
    let scores = found.scores.expect("scored");
    assert_eq!((scores.a.value, scores.b.value, scores.only_a, scores.only_b), (0.75, 0.55, 6, 2));
    // 2 (1 + 8 + 28)/256.
    assert!((scores.p - 74.0 / 256.0).abs() < 1e-12, "{}", scores.p);
    assert!((scores.difference.value + 0.2).abs() < 1e-12);
    assert_eq!(scores.verdict, ScoreVerdict::Inconclusive);
    assert_eq!(scores.a_flips, None);
    assert_eq!(found.agreement.between.exact.value, 12.0 / 20.0);
    assert!(found.agreement.a_itself.is_none() && found.agreement.beyond_noise.is_none());
    assert_eq!(found.agreement.first_divergence.expect("they part").p50, 0.0);
}

#[test]
fn verdicts_follow_the_interval() {
    let (yes, no) = (vec!["yes"; 200], vec!["no"; 200]);
    let verdict =
        |a: &[&str], b: &[&str], margin| judged(&said(a), &said(b), margin).scores.expect("scored").verdict;
    assert_eq!(verdict(&yes, &no, 0.02), ScoreVerdict::Worse);
    assert_eq!(verdict(&no, &yes, 0.02), ScoreVerdict::NotWorse);
    // 200 items without a difference bound it by z²/(200 + z²) = 1.9 %; 100 by 3.7 %.
    assert_eq!(verdict(&yes, &yes, 0.02), ScoreVerdict::NotWorse);
    assert_eq!(verdict(&yes[..100], &yes[..100], 0.02), ScoreVerdict::Inconclusive);
}

#[test]
fn an_endpoint_that_disagrees_with_itself_is_the_noise_floor() {
    // A changes on every second item; B gives A's first answer. Half of the pairs of rounds agree on those items.
    let flip = |i: usize, round: usize| if i.is_multiple_of(2) && round == 1 { "no" } else { "yes" };
    let a: Vec<Rounds> = (0..40).map(|i| (0..2).map(|r| Some(flip(i, r).to_owned())).collect()).collect();
    let b: Vec<Rounds> = (0..40).map(|_| vec![Some("yes".to_owned()); 2]).collect();
    let found = judged(&a, &b, 0.02);
    let agreement = &found.agreement;
    assert_eq!(agreement.a_itself.expect("asked twice").exact.value, 0.5);
    assert_eq!(agreement.b_itself.expect("asked twice").exact.value, 1.0);
    assert_eq!(agreement.between.exact.value, 0.75);
    // ½ (0.5 + 1) − 0.75 = 0: the disagreement is that of A with itself.
    assert_eq!(agreement.beyond_noise.expect("asked twice").value, 0.0);
    let scores = found.scores.expect("scored");
    assert_eq!((scores.a_flips, scores.b_flips), (Some(20), Some(0)));
    // The interval has a width even if all items agree.
    assert!(agreement.b_itself.expect("asked twice").tokens.lower < 0.95);
}

#[test]
fn what_was_not_answered_counts_in_no_figure() {
    let mut a = said(&["yes", "yes", "yes"]);
    a[1][0] = None;
    let found = judged(&a, &said(&["yes", "no", "yes"]), 0.02);
    assert_eq!(found.agreement.between.exact.n, 2);
    assert_eq!(found.scores.expect("scored").difference.n, 2);
    assert_eq!(
        (found.items[1].same, found.items[1].right_a, found.items[1].right_b),
        (None, None, Some(false))
    );
    let none = vec![vec![None]; 3];
    let found = judged(&none, &none, 0.02);
    assert!(found.scores.is_none() && found.agreement.between.exact.n == 0);
}

#[test]
fn what_was_cut_is_counted_and_the_scores_without_it_stand_beside() {
    // B rambles on 30 of 200 items: cut there, and wrong. It is worse over all items and equal over those without a cut.
    let cut: Vec<bool> = (0..200).map(|i| i < 30).collect();
    let (a, b) =
        (vec!["yes"; 200], (0..200).map(|i| if i < 30 { "no no no" } else { "yes" }).collect::<Vec<_>>());
    let found = judged_with((&said(&a), &[]), (&said(&b), &cut), 0.03);
    assert_eq!((found.targets[0].cut, found.targets[1].cut), (0, 30));
    assert!(found.items[0].cut_b && !found.items[0].cut_a && !found.items[30].cut_b);
    let scores = found.scores.expect("scored");
    assert_eq!((scores.verdict, scores.only_a), (ScoreVerdict::Worse, 30));
    let uncut = scores.uncut.expect("170 are whole");
    assert_eq!(
        (uncut.verdict, uncut.difference.n, uncut.difference.value),
        (ScoreVerdict::NotWorse, 170, 0.0)
    );
    // Without cut answers there is no second score; if all were cut, no item is left.
    assert!(judged(&said(&a), &said(&b), 0.03).scores.expect("scored").uncut.is_none());
    let all = vec![true; 200];
    assert!(judged_with((&said(&a), &all), (&said(&b), &[]), 0.03).scores.expect("scored").uncut.is_none());
}
