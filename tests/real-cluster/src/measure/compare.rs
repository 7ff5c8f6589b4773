//! Our controller beside upstream's, by turns, each run on a new cluster.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::burst;
use super::contender::Contender;
use super::options::{MeasureOptions, values};
use super::report::SECONDS;
use crate::paths::root;

/// Deployments of a burst.
const DEPLOYMENTS: u32 = 40;
/// Upstream's release at the level of which ours is.
const UPSTREAM: &str = "1.14.1";
/// Columns of the table: title, figure, unit.
const COLUMNS: [(&str, &str, &str); 7] = [
    ("time until the last pod is bound", SECONDS, " s"),
    ("$/h", "dollars per hour", ""),
    ("nodes", "nodes", ""),
    ("decisions", "decisions", ""),
    ("requests", "requests", ""),
    ("processor time", "processor seconds", " s"),
    ("peak memory", "peak MiB", " MiB"),
];

/// Options of a comparison. Finished runs are kept in target/realcluster/compare.jsonl: one that was interrupted goes on.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Numbers of pods of the bursts.
    #[arg(long, value_delimiter = ',', default_values_t = [400, 2000, 5000])]
    pods: Vec<u32>,
    /// Runs of each burst and controller.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Our controller once more with other values of the chart, for example
    /// nomination={"settings":{"featureGates":{"podNomination":true}}}. May be repeated.
    #[arg(long = "also", value_parser = also)]
    also: Vec<(String, Value)>,
    /// Run only controllers of this name: `ours`, `upstream`, or one of `--also`. The table has all finished runs.
    #[arg(long)]
    only: Option<String>,
    #[command(flatten)]
    options: MeasureOptions,
}

fn also(text: &str) -> Result<(String, Value), String> {
    let (name, json) = text
        .split_once('=')
        .ok_or_else(|| format!("invalid controller `{text}`: must be NAME=JSON"))?;
    Ok((name.to_owned(), values(json)?))
}

/// A finished run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    workload: String,
    controller: String,
    /// Identifies the program and the values of the chart.
    build: String,
    number: u32,
    figures: Map<String, Value>,
}

/// A controller with its settings.
#[derive(Debug)]
struct Candidate {
    name: String,
    build: String,
    options: MeasureOptions,
}

impl Compare {
    pub(super) async fn run(self) -> Result<()> {
        let candidates = self.candidates()?;
        if let Some(only) = &self.only
            && !candidates.iter().any(|it| it.name.starts_with(&**only))
        {
            let names: Vec<&str> = candidates.iter().map(|it| it.name.as_str()).collect();
            bail!(
                "unknown controller `{only}`: the controllers are {}",
                names.join(", ")
            );
        }
        let file = root().join("target/realcluster/compare.jsonl");
        let mut runs = read(&file)?;
        for pods in &self.pods {
            let workload = self.workload(*pods);
            for number in 1..=self.runs {
                for it in &candidates {
                    let is_chosen = self
                        .only
                        .as_ref()
                        .is_none_or(|only| it.name.starts_with(&**only));
                    let is_done = runs.iter().any(|run| {
                        run.workload == workload && run.build == it.build && run.number == number
                    });
                    if !is_chosen || is_done {
                        continue;
                    }
                    eprintln!("{workload}: {}, run {number} of {}", it.name, self.runs);
                    let report = burst(*pods, DEPLOYMENTS, false, false, &it.options).await?;
                    let run = Run {
                        workload: workload.clone(),
                        controller: it.name.clone(),
                        build: it.build.clone(),
                        number,
                        figures: report.figures(),
                    };
                    append(&file, &run)?;
                    runs.push(run);
                }
            }
        }
        let builds: Vec<&str> = candidates.iter().map(|it| it.build.as_str()).collect();
        runs.retain(|run| builds.contains(&&*run.build));
        match self.options.json {
            true => println!("{}", serde_json::to_string(&runs)?),
            false => print!("{}", table(&runs)),
        }
        Ok(())
    }

    fn candidates(&self) -> Result<Vec<Candidate>> {
        let candidate = |name: &str, options: MeasureOptions| -> Result<Candidate> {
            let program = Contender::new(&options)?.program().to_owned();
            let modified = fs::metadata(&program)?.modified()?;
            let seconds = modified.duration_since(UNIX_EPOCH)?.as_secs();
            let program = program.file_name().unwrap_or_default().to_string_lossy();
            Ok(Candidate {
                name: name.to_owned(),
                build: format!(
                    "{program} {seconds} {} {:?}",
                    options.values, options.environment
                ),
                options,
            })
        };
        let ours = MeasureOptions {
            upstream: None,
            ..self.options.clone()
        };
        let mut all = vec![candidate("ours", ours.clone())?];
        for (name, values) in &self.also {
            let mut options = ours.clone();
            json_patch::merge(&mut options.values, values);
            all.push(candidate(name, options)?);
        }
        let version = self.options.upstream.as_deref().unwrap_or(UPSTREAM);
        let upstream = MeasureOptions {
            upstream: Some(version.to_owned()),
            values: Map::new().into(),
            environment: Vec::new(),
            ..self.options.clone()
        };
        all.push(candidate(&format!("upstream {version}"), upstream)?);
        Ok(all)
    }

    fn workload(&self, pods: u32) -> String {
        let mut name = format!("burst of {pods} pods");
        if self.options.most_allocated {
            name += ", MostAllocated";
        }
        if let Some(cores) = self.options.api_server_cores {
            name += &format!(", {cores} cores for the API server");
        }
        name
    }
}

/// Returns the finished runs of a file. An interrupted write leaves a line that is no run.
fn read(file: &Path) -> Result<Vec<Run>> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.with_context(|| format!("cannot read {}", file.display()))?,
    };
    let lines = text.lines();
    Ok(lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

fn append(file: &Path, run: &Run) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    Ok(writeln!(file, "{}", serde_json::to_string(run)?)?)
}

/// Returns a Markdown table: a row for each workload and controller, with the median and, if there are other values, the smallest and
/// the largest.
fn table(runs: &[Run]) -> String {
    let titles = COLUMNS.map(|(title, ..)| title).join(" | ");
    let mut text = format!(
        "| | | {titles} |\n|---|---{}|\n",
        "|---".repeat(COLUMNS.len())
    );
    let mut rows: Vec<(&str, &str)> = Vec::new();
    for run in runs {
        let row = (&*run.workload, &*run.controller);
        if rows.contains(&row) {
            continue;
        }
        let of = |it: &&Run| (&*it.workload, &*it.controller) == row;
        let of: Vec<&Run> = runs.iter().filter(of).collect();
        let cells = COLUMNS.map(|(_, figure, unit)| {
            let values = of
                .iter()
                .filter_map(|run| run.figures.get(figure)?.as_f64());
            spread(values.collect(), unit)
        });
        let is_next = rows.last().is_some_and(|last| last.0 == row.0);
        let label = if is_next { "" } else { row.0 };
        text += &format!("| {label} | {} | {} |\n", row.1, cells.join(" | "));
        rows.push(row);
    }
    text
}

fn spread(mut values: Vec<f64>, unit: &str) -> String {
    values.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (values.first(), values.last()) else {
        return String::new();
    };
    let median = values[values.len() / 2];
    match least == most {
        true => format!("{}{unit}", short(median)),
        false => format!(
            "{}{unit} ({} to {})",
            short(median),
            short(*least),
            short(*most)
        ),
    }
}

/// Formats a number with three digits at least.
fn short(number: f64) -> String {
    match number {
        _ if number.fract() == 0.0 || number >= 100.0 => format!("{number:.0}"),
        _ if number >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_has_the_median_and_the_spread_of_each_controller() {
        let run = |controller: &str, seconds: f64| Run {
            workload: "burst".to_owned(),
            controller: controller.to_owned(),
            build: String::new(),
            number: 1,
            figures: json!({ SECONDS: seconds, "nodes": 4 })
                .as_object()
                .cloned()
                .unwrap(),
        };
        let runs = [
            run("ours", 31.0),
            run("ours", 29.5),
            run("ours", 130.25),
            run("upstream", 40.0),
        ];
        let table = table(&runs);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines[2],
            "| burst | ours | 31 s (29.5 to 130) |  | 4 |  |  |  |  |"
        );
        assert_eq!(lines[3], "|  | upstream | 40 s |  | 4 |  |  |  |  |");
    }
}
