package doctor

// Relations are the tables that the checks of storage look at.
var Relations = relations

// Sort puts findings into their order.
var Sort = sort
