//! The scripts of a scenario: what each session of a scripted client does.

use crate::{
    scenario::{
        lua,
        script_file::{Action, ScriptFile, StepFile},
        values::Via,
    },
    toml_file::Mistake,
};
use toml::Spanned;

/// What each session of a scripted client does.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Script {
    pub(crate) sessions: usize,
    pub(crate) over_websocket: bool,
    /// The think times are drawn from it; unset: from a random one, which is printed.
    pub(crate) seed: Option<u64>,
    pub(crate) steps: Steps,
}

/// Steps that are known beforehand, one after another, or that a program in Lua decides about.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Steps {
    Listed(Vec<Step>),
    Lua(String),
}

/// A step, with its name in figures and faults.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) action: Action,
}

/// Each session is a thread.
const SESSIONS_MAX: usize = 2_000;
/// Steps with all repetitions.
pub(crate) const STEPS_MAX: usize = 100_000;

impl Script {
    pub(crate) fn of(written: &Spanned<ScriptFile>) -> Result<Self, Mistake> {
        let file = written.get_ref();
        let sessions = *file.sessions.get_ref();
        if sessions == 0 || sessions > SESSIONS_MAX {
            return Err(Mistake::at(file.sessions.span(), format!("must be 1 to {SESSIONS_MAX}")));
        }
        let over_websocket = match file.via.as_ref().map(|via| (*via.get_ref(), via.span())) {
            None | Some((Via::Ws, _)) => true,
            Some((Via::Miop, _)) => false,
            Some((Via::Http | Via::Miops, span)) => {
                return Err(Mistake::at(span, "a scripted client connects by `ws` or `miop`"));
            }
        };
        let steps = match (&file.steps, &file.lua) {
            (Some(listed), None) => Steps::Listed(Script::listed(listed, written)?),
            (None, Some(program)) => {
                lua::check(program.get_ref()).map_err(|why| Mistake::at(program.span(), why))?;
                Steps::Lua(program.get_ref().clone())
            }
            _ => return Err(Mistake::at(written.span(), "a script has either `steps` or `lua`")),
        };
        Ok(Script { sessions, over_websocket, seed: file.seed, steps })
    }

    fn listed(listed: &[Spanned<StepFile>], written: &Spanned<ScriptFile>) -> Result<Vec<Step>, Mistake> {
        let mut steps = Vec::new();
        add_steps(listed, "", &mut steps)?;
        let Some(first) = listed.first() else {
            return Err(Mistake::at(written.span(), "a script needs at least one step"));
        };
        let mut is_bound = false;
        for step in &steps {
            let needs = !matches!(step.action, Action::Bind | Action::Wait(_) | Action::Push(_));
            if needs && !is_bound {
                return Err(Mistake::at(first.span(), format!("{} comes while the client is not bound", step.name)));
            }
            is_bound = match step.action {
                Action::Bind => true,
                Action::Disconnect => false,
                _ => is_bound,
            };
        }
        Ok(steps)
    }
}

/// Adds the steps with their repetitions.
fn add_steps(written: &[Spanned<StepFile>], prefix: &str, steps: &mut Vec<Step>) -> Result<(), Mistake> {
    for (number, step) in written.iter().enumerate() {
        match step.get_ref() {
            StepFile::Once(action) => {
                let name = format!("step {prefix}{} ({})", number + 1, action.word());
                steps.push(Step { name, action: action.clone() });
            }
            StepFile::Repeat { times, steps: inner } => {
                for _ in 0..*times {
                    add_steps(inner, &format!("{prefix}{}.", number + 1), steps)?;
                    if steps.len() > STEPS_MAX {
                        return Err(Mistake::at(step.span(), format!("there are more than {STEPS_MAX} steps")));
                    }
                }
            }
        }
    }
    Ok(())
}
