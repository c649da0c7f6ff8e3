//! What is put into the holes of inputs: texts around the limits of ids, keys and frames, numbers, and JSON of other kinds.

use super::{Input, with_json};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tidings_protocol::limits::{FRAME_BYTES_MAX, JSON_DEPTH_MAX};

const SEED: u64 = 20_261_126;
/// Room for the other fields of a frame.
pub(crate) const ENVELOPE_BYTES: usize = 1_024;
/// What the embedded store's keys may have, in bytes: one more is one too many.
const KEY_BYTES_MAX: usize = 65_535;

fn texts(epoch: u64) -> Vec<String> {
    let lengths = [65, 130, KEY_BYTES_MAX - 1, KEY_BYTES_MAX, KEY_BYTES_MAX + 1, 0, 64, 129, 1_000];
    let mut texts: Vec<String> = lengths.iter().map(|length| "x".repeat(*length)).collect();
    texts.push("x".repeat(20_000));
    texts.push("x".repeat(FRAME_BYTES_MAX - ENVELOPE_BYTES));
    // Two and four bytes for each character: limits are in bytes, and a cut within a character is none.
    texts.extend([33, 65, 1_500, KEY_BYTES_MAX / 2 + 1].map(|count| "é".repeat(count)));
    texts.push(format!("x{}", "😀".repeat(16_384)));
    // Ids of direct conversations, whose parts are looked up by themselves.
    texts.extend([64, 65, KEY_BYTES_MAX].map(|count| format!("alice~{}", "x".repeat(count))));
    texts.push("~".repeat(KEY_BYTES_MAX + 1));
    // A NUL is no text to PostgreSQL, and six bytes in JSON.
    texts.extend(["\0".into(), "a\0b".into(), format!("alice~{}", "\0".repeat(3)), "\0".repeat(20_000)]);
    texts.extend(["me", "@all", "..", "%", "\u{feff}", "\u{202e}"].map(str::to_owned));
    // Tokens of pages, and cursors.
    let most = u64::MAX;
    texts.extend([
        format!("{most}"),
        format!("{most:x}-{most:x}"),
        format!("p{most:x}-0"),
        format!("{most:x}-{most:x}-{most:x}"),
    ]);
    texts.extend([
        format!("0.{most}.{most}.{most}"),
        format!("{epoch:x}.{most}.0.{most}"),
        format!("{epoch:x}.{most}.{most}.{most}"),
    ]);
    texts
}

/// Texts of JSON for fields of any type. Not all are valid JSON to every reader.
fn json_texts() -> Vec<String> {
    let plain = [
        "null",
        "true",
        "[]",
        "{}",
        "\"\"",
        "-1",
        "-0.0",
        "0.5",
        "1e3",
        "1e400",
        "-1e400",
        "1e-400",
        "9007199254740993",
        "18446744073709551616",
        "-9223372036854775809",
        r#""\ud83d""#,
        r#""\ude00""#,
        r#""\ude00\ud83d""#,
        r#""\ud83d\u0000""#,
        r#""\ufffe""#,
        r#"{"text":"\ud83d"}"#,
        r#"{"text":1e400}"#,
        r#"{"\ud83d":1}"#,
        r#"{"text":1,"text":2}"#,
        r#"[null]"#,
        r#"[{}]"#,
        r#"[""]"#,
        r#"{"":""}"#,
    ];
    let mut texts: Vec<String> = plain.map(str::to_owned).into();
    texts.push("1".repeat(400));
    texts.push(format!("0.{}", "1".repeat(20_000)));
    texts.push(format!("[{}1]", "1,".repeat(30_000)));
    for depth in [JSON_DEPTH_MAX - 2, JSON_DEPTH_MAX - 1, JSON_DEPTH_MAX, JSON_DEPTH_MAX + 1, 128, 20_000] {
        texts.push(format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
        texts.push(format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth)));
    }
    texts
}

const NUMBERS: [u64; 7] = [0, 1, 1 << 31, 1 << 53, i64::MAX as u64, u64::MAX - 1, u64::MAX];

/// The first of [`texts`] are lengths at which something changes.
pub(crate) const LENGTHS: usize = 5;

/// How many texts are put into a hole.
#[derive(Clone, Copy)]
pub(crate) enum Share {
    All,
    Lengths,
    Random,
}

/// How many values are drawn for a field of which not all are tried.
const DRAWN: usize = 4;

/// What is put into holes.
pub(crate) struct Fillings {
    pub texts: Vec<String>,
    json_texts: Vec<String>,
    random: StdRng,
    rounds: usize,
    /// Inputs so far.
    pub tried: usize,
}

/// An input whose hole is filled.
pub(crate) struct Filled {
    /// The input as JSON, but for `json`.
    pub input: String,
    /// Goes into the input at last, since not every reader takes it.
    json: Option<String>,
}

impl Filled {
    pub(crate) fn whole(&self) -> String {
        self.part(&self.input)
    }

    pub(crate) fn part(&self, part: &str) -> String {
        self.json.as_ref().map_or_else(|| part.to_owned(), |json| with_json(part, json))
    }
}

impl Fillings {
    /// `epoch`: of the store's history, as cursors have it.
    pub(crate) fn new(epoch: u64) -> Self {
        let of_environment = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
        let random = StdRng::seed_from_u64(of_environment("FUZZ_SEED").unwrap_or(SEED));
        let rounds = of_environment("FUZZ_ROUNDS").map_or(1, |rounds| rounds as usize);
        Fillings { texts: texts(epoch), json_texts: json_texts(), random, rounds, tried: 0 }
    }

    fn drawn<'t>(random: &mut StdRng, from: &'t [String], count: usize) -> Vec<&'t String> {
        (0..count).map(|_| &from[random.random_range(0..from.len())]).collect()
    }

    pub(crate) fn of(&mut self, input: &Input, share: Share) -> Vec<Filled> {
        let mut filled = self.of_type(input, share);
        if let Some(template) = input.for_json() {
            let texts = match share {
                Share::All => self.json_texts.iter().collect(),
                _ => Self::drawn(&mut self.random, &self.json_texts, DRAWN * self.rounds),
            };
            filled.extend(texts.into_iter().map(|json| Filled { input: template.clone(), json: Some(json.clone()) }));
        }
        self.tried += filled.len();
        filled
    }

    /// Fillings of the type that the field has.
    fn of_type(&mut self, input: &Input, share: Share) -> Vec<Filled> {
        let filled: Vec<String> = match (input.is_for_text(), share) {
            (false, _) if input.is_for_number() => NUMBERS.iter().map(|number| input.filled("", *number)).collect(),
            (false, _) => vec![input.filled("", 0)],
            (true, Share::All) => self.texts.iter().map(|text| input.filled(text, 0)).collect(),
            (true, Share::Lengths) => self.texts[..LENGTHS].iter().map(|text| input.filled(text, 0)).collect(),
            (true, Share::Random) => {
                let drawn = Self::drawn(&mut self.random, &self.texts, DRAWN * self.rounds);
                drawn.into_iter().map(|text| input.filled(text, 0)).collect()
            }
        };
        filled.into_iter().map(|input| Filled { input, json: None }).collect()
    }
}
