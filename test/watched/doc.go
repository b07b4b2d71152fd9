// Package watched tests what an operator looks at and types: the alert rules of examples/prometheus
// with Prometheus' own promtool, the queries of the dashboards in examples/grafana, and docs/runbook.md.
// It holds tests only. It needs a PostgreSQL and a RabbitMQ, as "make test" has them.
//
//   - Every rule is valid, fires in a case of its unit tests and is silent in another, and its
//     runbook_url is a heading of the runbook.
//   - Every fault of the runbook is caused for real. The commands and the SQL of the runbook then run
//     word for word, through a built command, and the condition of the alert ends. Each command of
//     the runbook belongs to a test.
//
// promtool is taken from the PATH, or from the package prometheus of Debian, which is unpacked and
// not installed: nothing is started, and no rights are needed. Without it the tests fail.
package watched
