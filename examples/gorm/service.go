package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	driver "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
)

const topic = "order.placed"

// Order is a row of the table orders, and the payload of its event.
type Order struct {
	ID     string `gorm:"primaryKey"`
	Item   string
	Amount int
}

// Stock is a row of the table stocks: the quantity that is left of an item.
type Stock struct {
	Item string `gorm:"primaryKey"`
	Left int
}

// database is a schema for both the library and GORM, over one pool.
type database struct {
	pool  *pgxpool.Pool
	sql   *sql.DB
	gorm  *gorm.DB
	store *postgres.SQLStore
	cfg   postgres.Config
}

// open makes a schema with all tables. The caller drops it.
func open(ctx context.Context, url string, cfg *gorm.Config) (_ *database, err error) {
	if url == "" {
		return nil, errors.New("DATABASE_URL is not set: the address of a PostgreSQL, such as postgres://user@127.0.0.1:5432/postgres")
	}
	pc, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errors.New("DATABASE_URL is not a valid PostgreSQL URL") // the error may show the password
	}
	d := &database{cfg: postgres.Config{Schema: "boxpair_example_gorm_" + strings.ToLower(rand.Text()[:8])}}
	pc.ConnConfig.RuntimeParams["search_path"] = d.cfg.Schema
	if d.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return nil, err
	}
	d.sql = stdlib.OpenDBFromPool(d.pool)
	defer func() {
		if err != nil {
			err = errors.Join(err, d.drop(context.WithoutCancel(ctx)))
		}
	}()
	if _, err := postgres.Migrate(ctx, d.pool, d.cfg); err != nil {
		return nil, err
	}
	if d.store, err = postgres.NewSQL(d.pool, d.cfg); err != nil {
		return nil, err
	}
	cfg.Logger = logger.Discard // a service sets its own logger, which must not log payloads
	if d.gorm, err = gorm.Open(driver.New(driver.Config{Conn: d.sql}), cfg); err != nil {
		return nil, err
	}
	return d, d.gorm.WithContext(ctx).AutoMigrate(&Order{}, &Stock{})
}

// drop removes the schema and closes the pool.
func (d *database) drop(ctx context.Context) error {
	_, err := d.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{d.cfg.Schema}.Sanitize()+" CASCADE")
	err = errors.Join(err, d.sql.Close())
	d.pool.Close()
	return err
}

// service is a shop and its stock.
type service struct {
	db      *gorm.DB
	outbox  *producer.Outbox[*sql.Tx]
	inbox   *consumer.Inbox[*sql.Tx]
	handler *consumer.Handler[*sql.Tx]
}

func newService(db *database) (*service, error) {
	s := &service{db: db.gorm}
	var err error
	if s.outbox, err = producer.New(db.store, producer.Config{Name: "shop"}); err != nil {
		return nil, err
	}
	if s.inbox, err = consumer.New(db.store, consumer.Config{Service: "stock"}, consumer.WithOutbox(s.outbox)); err != nil {
		return nil, err
	}
	s.handler, err = s.inbox.Handle("take", s.take, consumer.HandlerConfig{})
	return s, err
}

// place is the sending side: the order and its event, in one transaction of GORM's.
func (s *service) place(ctx context.Context, order Order) error {
	err := s.db.WithContext(ctx).Transaction(func(db *gorm.DB) error { return s.placeIn(ctx, db, order) })
	if err == nil {
		s.outbox.Committed() // wakes relays; without the call they find the event at their next poll
	}
	return err
}

func (s *service) placeIn(ctx context.Context, db *gorm.DB, order Order) error {
	tx, err := transactionOf(db)
	if err != nil {
		return err
	}
	if err := db.Create(&order).Error; err != nil {
		return err
	}
	payload, err := json.Marshal(order)
	if err != nil {
		return err
	}
	_, err = s.outbox.Tx(tx).Write(ctx, producer.Event{
		Topic: topic, Key: order.ID, Source: "order/" + order.ID, Version: 1, Payload: payload,
	})
	return err
}

// take is the receiving side: the stock is reduced in the transaction of the message's inbox row,
// so a second copy of the message takes nothing.
func (s *service) take(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
	var order Order
	if err := json.Unmarshal(msg.Payload, &order); err != nil {
		return err
	}
	db := within(ctx, s.db, w.DB())
	return one(db.Model(&Stock{Item: order.Item}).Where(`"left" >= ?`, order.Amount).
		Update("left", gorm.Expr(`"left" - ?`, order.Amount)))
}

func (s *service) stockUp(ctx context.Context, stock ...Stock) error {
	return s.db.WithContext(ctx).Create(&stock).Error
}

func (s *service) left(ctx context.Context, item string) (int, error) {
	var stock Stock
	err := s.db.WithContext(ctx).First(&stock, "item = ?", item).Error
	return stock.Left, err
}
