// Package deps holds imports until their users are written.
package deps

import (
	_ "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	_ "github.com/ThreeDotsLabs/watermill/components/cqrs"
	_ "github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	_ "github.com/ThreeDotsLabs/watermill/pubsub/tests"
	_ "github.com/google/uuid"
	_ "github.com/hashicorp/golang-lru/v2"
	_ "github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/rabbitmq/amqp091-go"
	_ "go.uber.org/goleak"
	_ "modernc.org/sqlite"
)
