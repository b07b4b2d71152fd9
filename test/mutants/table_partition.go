package mutants

// partitioning is about topics over several queues of RabbitMQ.
var partitioning = []Mutant{
	{
		Name: "partition-by-turns", Guarantee: "G4",
		Broken: "Messages go to the partitions by turns, whatever their keys.",
		File:   "transport/amqp/publisher.go",
		Old:    `shardKey(key, shardOf(msg, p.config.Key(msg)))`,
		New:    `shardKey(key, int(p.seq.Load()%maxPartitions))`,
		Test:   Test{"transport/amqp", "TestPartitionIsTheShardOfTheKey"},
	},
	{
		Name: "partition-shared", Guarantee: "G4",
		Broken: "Several consumers of a partition are given its messages at once.",
		File:   "transport/amqp/topology.go",
		Old:    `			args[amqp091.SingleActiveConsumerArg] = true`,
		New:    `			args[amqp091.SingleActiveConsumerArg] = false`,
		Test:   Test{"transport/amqp", "TestPartitionsFailOverInOrder"},
	},
	{
		Name: "number-of-partitions-unchecked", Guarantee: "G7",
		Broken: "Publishers and consumers of a queue may have different numbers of partitions.",
		File:   "transport/amqp/partition.go",
		Old:    `	args[amqp091.QueueMaxLenArg] = l.count`,
		New:    `	args[amqp091.QueueMaxLenArg] = max(l.count, maxPartitions)`,
		Test:   Test{"transport/amqp", "TestAnotherNumberOfPartitionsIsRefused"},
	},
	{
		Name: "partitions-not-drained", Guarantee: "G2",
		Broken: "The number of partitions is changed while messages wait in the old ones.",
		File:   "transport/amqp/repartition.go",
		Old:    `if q.Messages > 0 || q.Consumers > 0 {`,
		New:    `if q.Consumers > 0 {`,
		Test:   Test{"transport/amqp", "TestPartitionsGrowAndShrinkInOrder"},
	},
	{
		Name: "partitions-empty-by-number", Guarantee: "G2",
		Broken: "Queues are deleted when RabbitMQ reports no messages, which it also reports for a queue that does not answer.",
		File:   "transport/amqp/repartition.go",
		Old:    `		if err := r.proveQueueEmpty(name); err != nil {`,
		New:    `		if err := r.proveQueueEmpty(name); false && err != nil {`,
		Test:   Test{"transport/amqp", "TestQueueThatIsNotCountedIsNotDeleted"},
	},
	{
		Name: "sentinel-handed-out", Guarantee: "G3",
		Broken: "A consumer is given the message that Repartition has left in its queue.",
		File:   "transport/amqp/admit.go",
		Old:    `	if raw.ContentEncoding == sentinelEncoding {`,
		New:    `	if false {`,
		Test:   Test{"transport/amqp", "TestQueueThatIsNotCountedIsNotDeleted"},
	},
	{
		Name: "partitions-not-given-back", Guarantee: "G4",
		Broken: "The first consumer keeps all partitions, and other consumers wait for its end.",
		File:   "transport/amqp/group.go",
		Old:    `	excess := -(g.layout.count + n - 1) / n`,
		New:    `	excess := -g.layout.count * n`,
		Test:   Test{"transport/amqp", "TestProcessesShareThePartitions"},
	},
}
