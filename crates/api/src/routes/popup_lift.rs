//! What popups have brought about: who was assigned to be shown a popup or not, and how they compare.

use super::{
    Answer,
    ids::Id,
    popup_events::{CSV, ExportFormat, JSON_LINES, as_lines, csv_of, inert},
    refusals::{Conflict, Refusals},
};
use crate::{
    Api,
    extract::{AppServer, PathIds, Query},
    page_stream::PageStream,
    problem::RefusalResponse,
};
use axum::{
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use std::sync::Arc;
use tidings_protocol::{
    http::{AssignmentGroup, ExportedAssignment, PopupLift, PopupLiftComparison},
    time::time_or_zero,
};

/// How a comparison is written.
#[derive(Debug, Clone, Copy, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum LiftFormat {
    /// One object.
    #[default]
    Json,
    /// RFC 4180: a line for each group, and one for each comparison.
    Csv,
}

/// Which users.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct LiftQuery {
    /// Users who were assigned then or later, in milliseconds since 1970 UTC.
    #[serde(default, deserialize_with = "time_or_zero")]
    pub from: Option<u64>,
    /// Users who were assigned before then.
    #[serde(default, deserialize_with = "time_or_zero")]
    pub to: Option<u64>,
    /// How it is written; `json` when absent.
    #[serde(default)]
    #[param(inline)]
    pub format: LiftFormat,
}

/// What a popup that declares its conversion has brought about: how many people were shown it, were in its control group or
/// held out, how many of them converted within the window, and the lift with its 95 % interval.
#[utoipa::path(get, path = "/v1/popups/{popup}/lift", tag = "popups",
    params(("popup" = inline(Id), Path, description = "The popup's id"), LiftQuery),
    responses((status = 200, description = "The groups and how they compare",
        content((PopupLift = "application/json"), (String = CSV))), Refusals, Conflict))]
pub(super) async fn get_lift(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
    Query(query): Query<LiftQuery>,
) -> Result<Response, RefusalResponse> {
    let LiftQuery { from, to, format } = query;
    let lift = api.read(move |engine| engine.popups.lift(&popup, from, to)).await?;
    Ok(match format {
        LiftFormat::Json => Answer::ok(lift).into_response(),
        LiftFormat::Csv => {
            let text = lift_as_csv(&lift).map_err(|error| crate::internal(&error))?;
            ([(header::CONTENT_TYPE, CSV)], text).into_response()
        }
    })
}

/// Which assignments.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AssignmentsQuery {
    /// Made then or later, in milliseconds since 1970 UTC.
    #[serde(default, deserialize_with = "time_or_zero")]
    pub from: Option<u64>,
    /// Made before then.
    #[serde(default, deserialize_with = "time_or_zero")]
    pub to: Option<u64>,
    /// How it is written; `jsonl` when absent.
    #[serde(default)]
    #[param(inline)]
    pub format: ExportFormat,
}

/// All assignments of a popup that declares its conversion, in the order of their time, with what came of them, streamed. An
/// answer that breaks off is not whole.
#[utoipa::path(get, path = "/v1/popups/{popup}/assignments", tag = "popups",
    params(("popup" = inline(Id), Path, description = "The popup's id"), AssignmentsQuery),
    responses((status = 200, description = "As `format` says: an `ExportedAssignment` as JSON in each line, or CSV",
        content((String = JSON_LINES), (String = CSV))), Refusals, Conflict))]
pub(super) async fn export_assignments(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
    Query(query): Query<AssignmentsQuery>,
) -> Result<Response, RefusalResponse> {
    let AssignmentsQuery { from, to, format } = query;
    let mut cursor = api.read(move |engine| engine.popups.assignments(&popup, from, to)).await?;
    let mut first = true;
    let pages = PageStream::start(api, move |engine| {
        let (assignments, more) = engine.popups.export_assignments(&mut cursor)?;
        let text = match format {
            ExportFormat::Jsonl => as_lines(&assignments),
            ExportFormat::Csv => assignments_as_csv(&assignments, std::mem::take(&mut first)),
        };
        Ok((text.map_err(|error| crate::internal(&error))?.into(), more))
    });
    let kind = match format {
        ExportFormat::Jsonl => JSON_LINES,
        ExportFormat::Csv => CSV,
    };
    Ok(([(header::CONTENT_TYPE, kind)], Body::new(pages)).into_response())
}

type Text = Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>>;

fn assignments_as_csv(assignments: &[ExportedAssignment], first: bool) -> Text {
    const NAMES: [&str; 7] = ["assigned_at", "user", "group", "variant", "converted_at", "conversions", "value"];
    csv_of(first.then_some(&NAMES), |writer| {
        for one in assignments {
            let ExportedAssignment { assigned_at, user, group, variant, converted_at, conversions, value } = one;
            let (user, variant) = (inert(user), variant.as_deref().map(inert));
            writer.serialize((assigned_at, user, group, variant, converted_at, conversions, value))?;
        }
        Ok(())
    })
}

fn lift_as_csv(lift: &PopupLift) -> Text {
    const NAMES: [&str; 14] = [
        "group",
        "variant",
        "people",
        "open",
        "converted",
        "rate",
        "conversions",
        "value",
        "value_per_person",
        "against",
        "against_variant",
        "lift",
        "low",
        "high",
    ];
    csv_of(Some(&NAMES), |writer| {
        for group in &lift.groups {
            let of_group =
                (group.group, group.variant.as_deref().map(inert), group.people, group.open, group.converted);
            let sums = (group.rate, group.conversions, group.value, group.value_per_person);
            let compared =
                |one: &&PopupLiftComparison| group.group == AssignmentGroup::Shown && one.variant == group.variant;
            let none = (None::<AssignmentGroup>, None::<&str>, None::<f64>, None::<f64>, None::<f64>);
            writer.serialize((&of_group, sums, none))?;
            for one in lift.lifts.iter().filter(compared) {
                let against = one.against_variant.as_deref().map(inert);
                writer.serialize((&of_group, sums, (Some(one.against), against, one.lift, one.low, one.high)))?;
            }
        }
        Ok(())
    })
}
