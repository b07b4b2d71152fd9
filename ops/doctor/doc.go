// Package doctor looks for problems before they lose or stall events and messages: in the settings,
// roles, sessions and tables of databases, and in the queues, policies and rights of RabbitMQ.
//
//	findings, err := doctor.Run(ctx, doctor.Config{
//		Outboxes:   []doctor.Database{{Name: "orders", Pool: orders, Connections: 20}},
//		Inboxes:    []doctor.Database{{Name: "stock", Pool: stock, Connections: 20}},
//		Management: amqp.Management{URL: "http://monitor:password@rabbit:15672"},
//	})
//	for _, f := range findings {
//		fmt.Println(f)
//	}
//
// A [Finding] is one line and one remedy. docs/doctor.md lists the checks, with the reason of each.
//
// # Guarantees
//
// Run only reads. A check that cannot be done, because a role or a user lacks a right or a server
// does not answer, gives a finding of the severity [NotChecked], and never passes in silence. No
// finding contains a password or a payload, except in the error of a handler that contains them. Names
// and errors are shown without control characters and without the passwords of URLs.
//
// # Limitations
//
// A report describes one moment. Databases are PostgreSQL and SQLite, and SQLite has the checks of
// tables only. In PostgreSQL, Run sees the sessions, settings and rights of the database that a pool
// reaches, so a pooler hides its clients. Run does not know which outbox feeds an inbox: the window
// of each consumer is compared with the events of every given outbox.
package doctor
