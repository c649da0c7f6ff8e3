//! A journey in the catalog, with its kept versions.

use super::{
    check::{CheckedJourney, CheckedStep},
    position::{Journey, JourneySettings, Step},
};
use crate::{rows::JourneyHead, rules::RuleNames};
use std::{collections::BTreeMap, sync::Arc};
use tidings_protocol::http::{PopupJourney, PopupJourneySpec};

/// A journey with its kept versions, as written and compiled.
pub(crate) struct JourneyEntry {
    pub(crate) no: u32,
    pub(crate) head: JourneyHead,
    pub(crate) updated_at: u64,
    pub(crate) updated_by: Option<String>,
    pub(crate) spec: PopupJourneySpec,
    pub(crate) checked: CheckedJourney,
    /// The ids and steps of all kept versions, the newest included.
    pub(crate) versions: BTreeMap<u16, Vec<(String, CheckedStep)>>,
}

impl JourneyEntry {
    pub(crate) fn to_http(&self) -> PopupJourney {
        PopupJourney {
            id: self.head.id.clone(),
            version: self.head.version,
            oldest: self.head.oldest,
            updated_at: self.updated_at,
            updated_by: self.updated_by.clone(),
            spec: self.spec.clone(),
        }
    }

    pub(crate) fn compile(&self, names: &dyn RuleNames) -> Arc<Journey> {
        let popup = |id: &str| names.popup(Some(id));
        let steps = |steps: &Vec<(String, CheckedStep)>| {
            Arc::new(steps.iter().map(|(id, step)| Step::compile(id, step, &popup)).collect::<Vec<_>>())
        };
        let versions = self.versions.iter().map(|(version, all)| (*version, steps(all))).collect();
        let settings = JourneySettings {
            no: self.no,
            id: &self.head.id,
            version: self.head.version as u16,
            state: self.spec.state,
            again: self.spec.entry.again,
        };
        Arc::new(Journey::compile(settings, &self.checked, versions, names))
    }
}

pub(crate) fn steps_of(spec: &PopupJourneySpec, checked: &CheckedJourney) -> Vec<(String, CheckedStep)> {
    spec.steps.iter().map(|step| step.id.clone()).zip(checked.steps.iter().cloned()).collect()
}
