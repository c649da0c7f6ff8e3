//! Scripts in Lua: a program that takes the steps of a scripted client and sees what came of them.
//!
//! The program is a coroutine. Each of its calls (`bind()`, `expect { … }`) yields the step as a file has it; whoever plays the session
//! takes the step and resumes the program with what came. So a script waits without holding up others, wherever it is played.

use crate::{
    interrupt,
    scenario::{
        lua::first_line,
        plan::script::{STEPS_MAX, Step},
        script_file::StepFile,
    },
};
use mlua::{HookTriggers, Lua, LuaOptions, LuaSerdeExt, StdLib, Thread, Value, VmState};
use serde::Deserialize;

/// The calls. Each also tells the line that it stands in.
const CALLS: &str = r#"
local line, yield = line_of_caller, coroutine.yield
line_of_caller = nil
function bind() return yield(line(), "bind") end
function disconnect() return yield(line(), "disconnect") end
function acknowledge() return yield(line(), "acknowledge") end
function wait(least, most) return yield(line(), { wait = most and { least, most } or least }) end
function send(it) return yield(line(), { send = it }) end
function push(it) return yield(line(), { push = it }) end
function expect(it) return yield(line(), { expect = it }) end
"#;

/// So much memory a script may use.
const MEMORY_MAX: usize = 16 * 1024 * 1024;
/// A script that calls nothing is asked after so many instructions whether the run was interrupted.
const INSTRUCTIONS_AT_ONCE: u32 = 100_000;

/// One session's script, as far as it has come.
pub(super) struct LuaScript {
    program: Thread,
    lua: Lua,
    taken: usize,
}

impl LuaScript {
    /// The program of the session with this number, whose `math.random` draws from the seed.
    ///
    /// # Errors
    /// What Lua says of it.
    pub(super) fn new(program: &str, session: usize, seed: u64) -> Result<Self, String> {
        LuaScript::prepare(program, session, seed).map_err(|error| first_line(&error))
    }

    fn prepare(program: &str, session: usize, seed: u64) -> mlua::Result<Self> {
        // Neither files nor programs nor other modules.
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::COROUTINE | StdLib::UTF8;
        let lua = Lua::new_with(libraries, LuaOptions::default())?;
        lua.set_memory_limit(MEMORY_MAX)?;
        let line = lua.create_function(|lua, ()| Ok(lua.inspect_stack(2, |caller| caller.current_line()).flatten()))?;
        lua.globals().set("line_of_caller", line)?;
        lua.load(CALLS).exec()?;
        lua.globals().set("session", session)?;
        lua.globals().get::<mlua::Table>("math")?.get::<mlua::Function>("randomseed")?.call::<()>(seed as i64)?;
        let program = lua.create_thread(lua.load(program).set_name("=lua").into_function()?)?;
        let asks = HookTriggers::new().every_nth_instruction(INSTRUCTIONS_AT_ONCE);
        program.set_hook(asks, |_, _| match interrupt::requested() {
            true => Err(mlua::Error::runtime("interrupted")),
            false => Ok(VmState::Continue),
        })?;
        Ok(LuaScript { program, lua, taken: 0 })
    }

    /// Goes on with what came of the step before; `None`: the program has ended.
    ///
    /// # Errors
    /// What is wrong with the program, with its line.
    pub(super) fn next(&mut self, came: Option<String>) -> Result<Option<Step>, String> {
        let (line, step): (Option<usize>, Value) = self.program.resume(came).map_err(|error| first_line(&error))?;
        if !self.program.is_resumable() {
            return Ok(None);
        }
        let line = line.unwrap_or_default();
        self.taken += 1;
        if self.taken > STEPS_MAX {
            return Err(format!("line {line}: more than {STEPS_MAX} steps"));
        }
        let step: serde_json::Value =
            self.lua.from_value(step).map_err(|error| format!("line {line}: {}", first_line(&error)))?;
        let step = StepFile::deserialize(step).map_err(|error| format!("line {line}: {error}"))?;
        let StepFile::Once(action) = step else { return Err(format!("line {line}: a loop is Lua's own")) };
        Ok(Some(Step { name: format!("line {line} ({})", action.word()), action }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::script_file::Action;

    fn names(program: &str, answers: &[&str]) -> Result<Vec<String>, String> {
        let mut script = LuaScript::new(program, 3, 7)?;
        let (mut names, mut answers) = (Vec::new(), answers.iter());
        let mut came = None;
        while let Some(step) = script.next(came.take())? {
            if matches!(step.action, Action::Expect(_)) {
                came = answers.next().map(|answer| (*answer).to_owned());
            }
            names.push(step.name);
        }
        Ok(names)
    }

    #[test]
    fn a_program_takes_steps_and_sees_what_came() {
        let program = r#"
            bind()
            for n = 1, 2 do
                local text = expect { kind = "message", within = "5s" }
                send { to = "partner", body = text .. session }
            end
            wait("1s", "2s")
            wait("10ms")"#;
        let found = names(program, &["a", "b"]).unwrap();
        let expected = [
            "line 2 (bind)",
            "line 4 (expect)",
            "line 5 (send)",
            "line 4 (expect)",
            "line 5 (send)",
            "line 7 (wait)",
            "line 8 (wait)",
        ];
        assert_eq!(found, expected);
        let mut script = LuaScript::new(program, 3, 7).unwrap();
        script.next(None).unwrap();
        script.next(None).unwrap();
        let Some(Step { action: Action::Send(file), .. }) = script.next(Some("hi".into())).unwrap() else {
            panic!("no send")
        };
        assert_eq!(file.body, "hi3");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        assert_eq!(names("bind()\nbnd()", &[]).unwrap_err(), "2: attempt to call a nil value (global 'bnd')");
        assert!(names("\nwait('1 week')", &[]).unwrap_err().starts_with("line 2: "));
        assert!(names("send { to = 'nobody', body = 'x' }", &[]).unwrap_err().starts_with("line 1: unknown variant"));
        assert!(names("os.exit(1)", &[]).unwrap_err().contains("global 'os'"));
        let hoards = "local all = {} while true do all[#all + 1] = ('x'):rep(1000) .. #all end";
        assert!(names(hoards, &[]).unwrap_err().contains("not enough memory"));
    }

    #[test]
    fn a_seed_draws_the_same_again() {
        let drawn = |seed| {
            let mut script = LuaScript::new("wait(math.random(1, 1000000) .. 'ms')", 0, seed).unwrap();
            script.next(None).unwrap().unwrap().action
        };
        assert_eq!(drawn(5), drawn(5));
        assert_ne!(drawn(5), drawn(6));
    }
}
