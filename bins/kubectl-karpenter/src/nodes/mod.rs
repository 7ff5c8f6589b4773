//! `kubectl karpenter nodes`: nodes with their usage, price and the reason why each is kept, live in a terminal.
//!
//! Users of eks-node-viewer expect it, also where no browser reaches the cluster; the columns and reasons are those of the dashboard.

mod columns;
mod decisions;
mod paint;
mod screen;
mod select;
mod source;
mod state;
mod view;

use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use console::Term;

use crate::flags::KubectlFlags;
use crate::output::{self, Layout};
use crate::transport::ServerFlags;
use paint::{Painter, Style};
use select::{Key, Resource, Sort, is_of_node, selected};
use source::Source;
use view::{Line, Shown, cut, summary, table};

/// What a line of the table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// A node.
    Node,
    /// A NodePool.
    Pool,
}

/// Show nodes live: usage, price, state, and why each is kept.
///
/// The options are those of eks-node-viewer. Karpenter's leader sends the state and its changes; without it the API server is asked
/// for nodes, pods and NodeClaims, and prices and reasons are missing. Without a terminal the view is printed once.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl karpenter nodes
  kubectl karpenter nodes --resources cpu,memory --node-sort cost=dsc
  kubectl karpenter nodes --by pool
  kubectl karpenter nodes --once --extra-labels topology.kubernetes.io/zone")]
pub(crate) struct Args {
    /// Resources whose usage is shown, comma-separated.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        value_enum,
        default_value = "cpu"
    )]
    resources: Vec<Resource>,
    /// Label selector of nodes; the same as -l.
    #[arg(long, value_name = "SELECTOR")]
    node_selector: Option<String>,
    /// Order of nodes: creation, cost, name, cpu, memory, pods or a label, with =asc or =dsc.
    #[arg(long, value_name = "KEY=ORDER", default_value = "creation=dsc")]
    node_sort: Sort,
    /// Labels of nodes that are shown, comma-separated.
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    extra_labels: Vec<String>,
    /// Colors of good, fair and bad usage.
    #[arg(long, value_name = "COLORS", default_value = "#04B575,#FFFF00,#FF0000")]
    style: Style,
    /// Show no prices.
    #[arg(long)]
    disable_pricing: bool,
    /// What a line of the table is.
    #[arg(long, value_enum, default_value = "node")]
    by: By,
    /// Print the view once, and end.
    #[arg(long)]
    once: bool,
    /// How often the API server is asked if Karpenter cannot be.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    kubectl: KubectlFlags,
}

fn interval(text: &str) -> Result<Duration, String> {
    let parsed = karpenter_api::duration::parse(text).ok();
    let parsed = parsed.and_then(|parsed| Duration::try_from(parsed).ok());
    parsed
        .filter(|interval| *interval >= Duration::from_secs(1))
        .ok_or_else(|| "must be a duration of at least 1s".to_owned())
}

impl Args {
    /// Shows the view until the user quits, or prints it.
    pub(crate) async fn run(&self) -> anyhow::Result<ExitCode> {
        let selector = self.node_selector.clone();
        let sorted = match &self.node_sort.key {
            Key::Label(label) => Some(label),
            _ => None,
        };
        let labels = self.extra_labels.iter().chain(sorted);
        let source = Source {
            kubectl: self.kubectl.clone(),
            server: self.server.clone(),
            selector: selector.or_else(|| self.kubectl.selector.clone()),
            labels: labels.into_iter().any(|label| is_of_node(label)),
            interval: self.interval,
        };
        let shown = Shown {
            resources: self.resources.clone(),
            prices: !self.disable_pricing,
            extra_labels: self.extra_labels.clone(),
            by_pool: self.by == By::Pool,
            headers: !self.kubectl.no_headers,
        };
        let is_terminal = Term::stdout().is_term();
        if is_terminal && !self.once {
            let painter = Painter::of_screen(self.style);
            screen::run(&source, shown, self.node_sort.clone(), &painter).await?;
            return Ok(ExitCode::SUCCESS);
        }
        let state = source.once().await?;
        let width = Layout::of_stdout(true).width;
        let nodes = selected(&state, &self.node_sort, "");
        let painter = Painter::of_output(self.style, is_terminal);
        let mut lines = summary(&state, &nodes, &shown, width);
        lines.push(Line::new());
        lines.extend(table(&state, &nodes, &shown, width));
        let mut text = String::new();
        for line in lines {
            text.push_str(painter.paint(&cut(line, width)).trim_end());
            text.push('\n');
        }
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::nodes::state::State;

    /// A cluster with a node of each state, a long name and a name with control sequences.
    fn state() -> State {
        let overview = json!({
            "observed": { "at": "2026-01-06T03:00:00Z" },
            "totals": { "pods": 3412, "pending": 7, "launching": 1, "disrupting": 1 },
            "pending": [
                { "reason": "TopologyUnsatisfiable", "count": 4 },
                { "reason": "LimitReached", "count": 3 },
            ],
            "nodes": {
                "id": ["default-1", "default-2", "default-3", "other-1"],
                "node": ["ip-10-0-3-7.eu-west-1.compute.internal", "ip-10-0-9-1.eu-west-1.compute.internal", "", "evil\u{1b}[31m-node"],
                "nodePool": ["default", "default", "default", "other"],
                "zone": ["eu-west-1a", "eu-west-1b", "eu-west-1a", "eu-west-1c"],
                "instanceType": ["m6i.4xlarge", "c7a.2xlarge", "m7a.4xlarge", "r7g.16xlarge"],
                "capacityType": ["on-demand", "spot", "spot", "on-demand"],
                "state": ["Ready", "Ready", "Launching", "Disrupting"],
                "reason": ["Pdb", "NotCheaper", "", ""],
                "text": ["Pdb shop/payments prevents pod evictions", "Can't replace with a cheaper node", "", ""],
                "created": [1767225600, 1767666000, 1767668388, 1767600000],
                "price": [768000, 131200, 221200, 3225600],
                "pods": [14, 31, 0, 120],
                "podsAllocatable": [234, 58, 0, 737],
                "cpu": [6040, 7440, 0, 30100],
                "cpuAllocatable": [15890, 7910, 0, 63770],
                "memory": [30000, 9000, 0, 500_000],
                "memoryAllocatable": [57691, 14162, 0, 504_000],
            },
        });
        State::of(&overview).unwrap()
    }

    fn shown(resources: &[Resource]) -> Shown {
        Shown {
            resources: resources.to_vec(),
            prices: true,
            extra_labels: Vec::new(),
            by_pool: false,
            headers: true,
        }
    }

    fn printed(shown: &Shown, width: Option<usize>) -> String {
        let state = state();
        let nodes = selected(&state, &"name=asc".parse().unwrap(), "");
        let mut lines = summary(&state, &nodes, shown, width);
        lines.push(Line::new());
        lines.extend(table(&state, &nodes, shown, width));
        let painter = Painter::of_output("#04B575,#FFFF00,#FF0000".parse().unwrap(), false);
        let lines = lines
            .into_iter()
            .map(|line| painter.paint(&cut(line, width)));
        let text: Vec<String> = lines.map(|line| line.trim_end().to_owned()).collect();
        if let Some(width) = width {
            for line in &text {
                assert!(console::measure_text_width(line) <= width, "{line}");
            }
        }
        text.join("\n")
    }

    /// Conformance: DASH-12
    #[test]
    fn the_view_at_80_columns() {
        insta::assert_snapshot!(printed(&shown(&[Resource::Cpu]), Some(80)));
    }

    /// Conformance: DASH-12
    #[test]
    fn the_view_at_200_columns() {
        let shown = shown(&[Resource::Cpu, Resource::Memory]);
        insta::assert_snapshot!(printed(&shown, Some(200)));
    }

    #[test]
    fn the_view_by_node_pool_and_without_prices() {
        let shown = Shown {
            by_pool: true,
            prices: false,
            ..shown(&[Resource::Pods])
        };
        insta::assert_snapshot!(printed(&shown, Some(80)));
    }

    #[test]
    fn nothing_is_cut_in_a_pipe_and_nothing_breaks_in_a_narrow_terminal() {
        let all = printed(&shown(&[Resource::Cpu]), None);
        assert!(all.contains("Pdb shop/payments prevents pod evictions"));
        assert!(all.contains(r"evil\u{1b}[31m-node"), "{all}");
        for width in 0..120 {
            printed(&shown(&[Resource::Cpu, Resource::Memory]), Some(width));
        }
    }
}
