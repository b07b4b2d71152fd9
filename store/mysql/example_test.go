package mysql_test

import (
	"context"
	"database/sql"
	"log"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/mysql"
)

// A change and its event in one transaction of a MySQL or MariaDB database.
func Example() {
	ctx := context.Background()
	db, err := mysql.Open("shop:password@tcp(127.0.0.1:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := mysql.Migrate(ctx, db, mysql.Config{}); err != nil {
		log.Fatal(err)
	}
	store, err := mysql.New(db, mysql.Config{})
	if err != nil {
		log.Fatal(err)
	}
	outbox, err := producer.New(store, producer.Config{Name: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	err = outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		if _, err := w.DB().ExecContext(ctx, `INSERT INTO orders (id) VALUES (?)`, "42"); err != nil {
			return err
		}
		_, err := w.Write(ctx, producer.Event{Topic: "order.placed", Key: "42", Source: "order/42", Version: 1})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
