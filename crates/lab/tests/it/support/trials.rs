//! Trials, named as libtest names tests: by their module and function, and a trial of a case by the case, too.

use libtest_mimic::Trial;
use std::sync::{PoisonError, RwLock};

/// Trials run beside each other, but for one that measures time: it has the machine for itself, since the load of others would
/// be in its figures.
static MACHINE: RwLock<()> = RwLock::new(());

/// A trial of a function without arguments, or of a call: `trial!(f)` is named `module::f`, and
/// `trial!(f(Fault::LoseEntry, 4))` is named `module::f::lose_entry::4`.
macro_rules! trial {
    ($function:ident) => {
        $crate::support::trials::beside_others(module_path!(), stringify!($function), &[], $function)
    };
    ($function:ident($($argument:expr),+)) => {
        $crate::support::trials::beside_others(
            module_path!(),
            stringify!($function),
            &[$(format!("{:?}", $argument)),+],
            move || $function($($argument),+),
        )
    };
}
pub(crate) use trial;

/// What [`trial`] makes: a trial that others may run beside.
pub(crate) fn beside_others(
    module: &str,
    function: &str,
    case: &[String],
    run: impl FnOnce() + Send + 'static,
) -> Trial {
    Trial::test(name(module, function, case), move || {
        // A trial that panicked has left nothing behind that others could see.
        let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        run();
        Ok(())
    })
}

/// A trial that runs while no other does.
pub(crate) fn alone(module: &str, function: &str, run: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name(module, function, &[]), move || {
        let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
        run();
        Ok(())
    })
}

fn name(module: &str, function: &str, case: &[String]) -> String {
    // The path begins with the name of this binary, which libtest leaves out.
    let module = module.split_once("::").map_or(module, |(_, module)| module);
    let case = case.iter().map(|value| snake_case(value));
    [module.to_owned(), function.to_owned()].into_iter().chain(case).collect::<Vec<_>>().join("::")
}

/// `LoseEntry` as `lose_entry`, and `--members 7` as `members_7`.
fn snake_case(text: &str) -> String {
    let mut words = String::new();
    for letter in text.chars() {
        let begins_word = !letter.is_alphanumeric() || letter.is_uppercase();
        if begins_word && !words.is_empty() && !words.ends_with('_') {
            words.push('_');
        }
        words.extend(letter.to_lowercase().filter(|letter| letter.is_alphanumeric()));
    }
    words.trim_end_matches('_').to_owned()
}
